"""Cache: the latents and images that are kept, their format, and the order of eviction."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from shared.runtime.settings.section import Section, Steps

AFTERIMAGE_LEVELS = 10
"""Largest number of K for `eviction_policy` afterimage, whose tables have one entry for each set of present K."""


class Cache(Section):
    """Budgets and policies: latents first, then finished images."""

    cache_max_bytes: int = Field(
        1 * 2**30,
        ge=0,
        description="Bytes of cached latents and masks. Above this budget the eviction policy removes latents; a "
        "larger budget keeps more of them to start from.",
    )
    cache_max_age_s: float = Field(
        30 * 24 * 3600.0,
        ge=0,
        description="Seconds after which an entry leaves the cache with its latents and its image (30 days). Its job "
        "keeps the image for `results_keep_s`. 0: no limit.",
    )
    eviction_policy: Literal["lcbfu", "lru", "lfu", "fifo", "lrbu", "afterimage"] = Field(
        "afterimage",
        description="Policy that admits and evicts latents. The default, afterimage, learns how many steps each latent "
        "saves. NIRVANA's policy is lcbfu (§5.4), FlexCache's is lrbu; lru, lfu and fifo are for comparison.",
    )
    capture_steps: Steps = Field(
        (5, 10, 15, 20, 25, 30, 35, 40, 45),
        description="Steps K, of T = 50, after which a run's latent is kept; each K is from 1 to 49. More K allow "
        "closer starts and fill the budget sooner. NIRVANA keeps the first five (§5.3).",
    )
    capture_fp16_states: float = Field(
        5,
        gt=0,
        description="Room for the latents of one image if `state_codec` is auto, counted in latents of fp16. The K of "
        "`capture_steps` fill the room in ascending order.",
    )
    state_codec: Literal[
        "auto",
        "fp16",
        "fp32",
        "int8",
        "fp8",
        "int6",
        "int4",
        "residual-2bit",
        "residual-1bit",
        "residual",
        "residual-4x4",
        "residual-2x2x2",
        "residual-4x2x2",
        "keyframes",
    ] = Field(
        "auto",
        description="Number format of stored latents. auto takes for each K the smallest format that kept every bound "
        "of quality in `afterimage profile --codecs`, and fp16 where nothing was measured. A smaller format fits more "
        "latents into the budget and stores them less exactly. residual stores the seed of the noise, and 2×2 averages "
        "of the rest in 3 bits. The other residual formats store 4×4 averages (4x4), averages over 2 or 4 frames of a "
        "clip too (2x2x2, 4x2x2), or every value in 1 or 2 bits (1bit, 2bit). keyframes stores a clip's states "
        "together (FlexCache §4.1): key frames, and differences to the first frame that all steps share.",
    )
    keyframe_similarity: float = Field(
        0.99,
        ge=0,
        le=1,
        description="Least cosine of a frame to the earlier frame that the codec keyframes repeats in its place "
        "(FlexCache §4.1.1). A smaller value leaves out more frames.",
    )
    keyframe_least: float = Field(
        0.995,
        ge=0,
        le=1,
        description="Least cosine of each decoded frame of the codec keyframes to the frame as it was. Frames below "
        "are stored whole; 0: none.",
    )
    insert_on_hit: bool = Field(True, description="Keep the latents of hits too, at the K after the start step.")
    lcbfu_initial_uses: float = Field(
        1.0,
        ge=0,
        description="Uses that the policies lcbfu and lrbu add to the count of every latent: the score grows with "
        "uses × K. A larger value keeps unused latents longer.",
    )

    image_tier: Literal["all", "large", "off"] = Field(
        "all",
        description="Finished images that any model may start from: all images, only those of the large model, or "
        "none (off).",
    )
    picture_policy: Literal["fifo", "lcbfu", "lru", "lfu"] = Field(
        "fifo", description="Order in which finished images are evicted. fifo is MoDM's sliding window."
    )
    picture_max_count: int = Field(
        100_000, ge=0, description="Finished images to start from. Above this number the oldest by policy is evicted."
    )
    picture_max_bytes: int = Field(
        1 * 2**30,
        ge=0,
        description="Bytes of the finished images to start from, apart from the latents' `cache_max_bytes`.",
    )

    @model_validator(mode="after")
    def _check_capture_steps(self) -> Self:
        if any(not 0 < k < 50 for k in self.capture_steps):
            raise ValueError(f"capture_steps: every K must be from 1 to 49, of T = 50 (got {self.capture_steps})")
        if self.eviction_policy == "afterimage" and len(set(self.capture_steps)) > AFTERIMAGE_LEVELS:
            raise ValueError(
                f"capture_steps: eviction_policy afterimage takes at most {AFTERIMAGE_LEVELS} K "
                f"(got {len(set(self.capture_steps))}); name fewer, or choose another eviction_policy"
            )
        return self
