"""The key under which a finished picture answers the same request again (design §2, Compatibility)."""

from __future__ import annotations

import hashlib
import json

from shared.models.card import ModelCard
from shared.types import Request


def exact_key(request: Request, card: ModelCard) -> str:
    """sha256 over everything that an exact repeat has in common: texts, size, seed, guidance, steps, weights, sampler.

    Whether the client named the seed is not part of it: a picture with a drawn (and reported) seed may answer a later
    request that names this seed, but a request without a seed is never looked up.
    """
    parts = [
        request.prompt,
        request.negative_prompt,
        request.modality,
        str(request.size),
        request.frames,
        request.steps,
        repr(float(request.guidance)),
        request.seed,
        card.weights_hash,
        card.sampler_id,
        card.dtype,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
