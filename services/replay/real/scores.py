"""CLIP scores of a policy's images and clips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from services.embedder.encoder import Encoder
from services.gpu_worker.jobs.codecs import encode_png
from services.replay.real.kept import Kept
from shared.domain.types import Vector, vector_from
from shared.runtime import animated_png
from shared.runtime.progress import Advance

AT_A_TIME = 32
"""Frames that the encoder compares together."""


def clip_scores(
    prompts: Mapping[int, str], kept: Kept, frames: int, encoder: Encoder, advance: Advance
) -> dict[int, float]:
    """Return the cosine of each kept image with its prompt; of a clip, the mean over its frames.

    prompts: by request. frames: of each request.
    """
    requests, found = list(prompts), dict[int, float]()
    each = max(AT_A_TIME // frames, 1)
    for first in range(0, len(requests), each):
        some = requests[first : first + each]
        texts = encoder.texts([prompts[request] for request in some])
        vectors = _mean_vectors([kept.picture(request).read_bytes() for request in some], encoder)
        for request, text, vector in zip(some, texts, vectors, strict=True):
            found[request] = float(vector_from(text.vector) @ vector)
        advance(len(some))
    return found


def _mean_vectors(pngs: Sequence[bytes], encoder: Encoder) -> list[Vector]:
    """Return the mean of the frames' unit vectors: its cosine with a prompt is the frames' mean cosine."""
    clips = [animated_png.decode(png) for png in pngs]
    seen = iter(encoder.images([encode_png(frame) for clip in clips for frame in clip]))
    return [np.mean([vector_from(next(seen).vector) for _ in clip], axis=0) for clip in clips]
