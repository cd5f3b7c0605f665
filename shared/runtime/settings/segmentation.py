"""Segmentation: the model that finds object and background in finished clips, and how it runs."""

from __future__ import annotations

from pydantic import Field

from shared.runtime.settings.section import Section, Share


class Segmentation(Section):
    """The segmenter. It works after a clip is finished, so no request waits for it."""

    segmenter: str = Field(
        "bundled:segmenter",
        description="Model that finds object and background in finished clips: bundled:NAME, a folder, or a hub id of "
        "a CLIPSeg or SAM 3; DETECTOR+SAM for a Grounding DINO and a SAM. Empty: none, so that no clips are stitched.",
    )
    segmenter_device: str = Field(
        "cpu",
        description="Device of the segmenter: auto (a GPU where there is one), cpu, cuda, cuda:1 … FlexCache segments "
        "on the CPU (§5).",
    )
    segmenter_threads: int = Field(
        1, ge=1, le=256, description="CPU threads of the segmenter. The other cores belong to the denoiser."
    )
    segment_threshold: Share = Field(
        0.5,
        description="Probability from which a pixel belongs to a phrase. A larger value makes tighter masks, and more "
        "clips have none.",
    )
