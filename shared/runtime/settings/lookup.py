"""Lookup: embedding a prompt, predicting whether a lookup is worth it, and planning from what is found."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shared.runtime.settings.section import Seconds, Section, Share


class Lookup(Section):
    """Retriever, match predictor and embedder."""

    k_table_alpha: Annotated[float, Field(gt=0, le=1, description="Quality a hit keeps; NIRVANA's is .9.")] = 0.95
    image_k_table_alpha: Annotated[
        float, Field(gt=0, le=1, description="Quality that a start from a finished image keeps; MoDM's is .95.")
    ] = 0.95
    candidates: int = Field(8, ge=1, le=200, description="Nearest entries the planner looks at.")
    further_candidates: int = Field(
        64,
        ge=1,
        le=1000,
        description="Nearest entries it looks at where those hold no state for as late a start as their similarity "
        "allows; never further where it is not above `candidates`.",
    )
    epsilon: Share = Field(0.0, description="Share of hits generated from noise all the same (NIRVANA §9).")
    lookup_timeout_s: Seconds = Field(0.5, description="Limit of one index search or catalog read while planning.")

    predictor: Literal["sketch", "svm", "always"] = Field(
        "sketch", description="What says whether a lookup is worth it; svm is NIRVANA's (§5.2), always asks nobody."
    )
    sample_predicted_misses: Share = Field(0.05, description="Predicted misses looked up anyway, to know recall.")
    sketch_margin: float = Field(
        0.01, ge=0, le=1, description="Cosine below the K table's lowest threshold that the sketch still calls a hit."
    )

    embed_wait_s: float = Field(0.0, ge=0, le=1, description="How long a text waits for others to share its batch.")
    embed_cache: int = Field(4096, ge=0, description="Texts whose embedding is kept in memory.")
