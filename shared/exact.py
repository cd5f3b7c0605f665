"""The key under which two requests are the same picture (design §2: an exact repeat)."""

from __future__ import annotations

import hashlib
import json

from shared.types import CompatKey, Request


def exact_key(request: Request, compat: CompatKey) -> str:
    """32 hex digits over prompt, negative prompt, weights, sampler, dtype, size, frames, seed, guidance and steps.

    Nothing about the cache goes in: a picture that started from another one is a repeat's answer too. A request whose
    seed was drawn by the gateway has a key (a later request may name that seed) but is never looked up by it.
    """
    same = [
        request.modality.value,
        request.prompt,
        request.negative_prompt,
        str(compat),
        request.frames,
        request.seed,
        float(request.guidance),
        request.steps,
    ]
    return hashlib.sha256(json.dumps(same).encode()).hexdigest()[:32]
