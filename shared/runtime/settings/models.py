"""Models: the models that generate images, the encoder, and the devices they run on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shared.runtime.settings.section import Section


class Models(Section):
    """Models and workers. The defaults run the bundled models."""

    large: str = Field(
        "bundled:large", description="Model that generates: a name of `models list`, a folder, or a hub id."
    )
    small: str = Field(
        "", description="Models that refine what another began, best first, with commas between them; empty: none."
    )
    encoder: str = Field("bundled:clip", description="Text/image encoder: bundled:NAME, a folder, or a hub id.")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:0 …")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="What weights are loaded and compute in; auto: the model's card's, on a CPU float32."
    )
    offload: Literal["none", "model", "sequential"] = Field(
        "none",
        description="Where weights wait: on the device; text encoders, denoiser and VAE in turns; layer by layer.",
    )
    torch_threads: int = Field(
        0, ge=0, le=256, description="Threads of the denoiser; 0: the fastest, measured while it runs."
    )
    max_rows: int = Field(8, ge=1, le=512, description="Requests that share one step batch.")
    batch_invariant: int = Field(
        0, ge=0, le=512, description="N: pad every group to N rows on one thread, so that results are bit-identical."
    )
    resident_bytes: int = Field(
        0, ge=0, description="Weights that a worker keeps loaded; 0: of all models it may be assigned."
    )
    workers: int = Field(1, ge=1, le=64, description="Workers in the all-in-one process.")
