"""Settings file of a cache policy: what a lookup compares, what is kept, and what is evicted first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from services.cache_maintainer.eviction.scored import POLICIES
from services.replay.simulated.general import SHELVES
from shared.domain.errors import ConfigurationError
from shared.models.card import ModelCard
from shared.models.card_lookup import BUNDLED_PREFIX, find_card
from shared.models.k_table import MODM
from shared.models.state_codecs import codec_of
from shared.runtime.settings.cache import AFTERIMAGE_LEVELS
from shared.runtime.settings_names import in_words
from shared.runtime.toml_file import read_toml

FOLDER = Path(__file__).parent / "policies"
"""Settings files that ship, one per policy name."""

SAME = {"modm-cache-all": "modm"}
"""Aliases of policies; cache-all is the default of MoDM (§5.4)."""

CODEC_SHARE = {
    "fp16": 1.0, "int8": 0.455, "fp8": 0.416, "int6": 0.341, "int4": 0.235,
    "residual-2bit": 0.125, "residual-1bit": 0.063, "residual": 0.047, "residual-4x4": 0.012,
}  # fmt: skip
"""Bytes of a state relative to fp16, measured on the latent of a 512×512 image of pure noise, which compresses worst
(`python -m bench.state_codecs --bytes-only`). bench/results/state_codecs.json has the quality of each codec."""

KEYFRAMES = {0.995: "keyframes", 0.0: "keyframes-paper"}
"""Measured bytes of the codec `keyframes` by `keyframe_least` (services/replay/traces/clip_bytes.py)."""


class PolicySettings(BaseModel):
    """A policy or baseline. `capture_steps` are K of T = 50."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    source: str = Field(description="Paper and section that it follows.")
    lookup: Literal["similar", "text", "none"] = "similar"
    candidates: int = Field(8, ge=1, le=200, description="Nearest live entries that compete for the best state.")
    further_candidates: int = Field(
        64,
        ge=1,
        le=1000,
        description="Nearest live entries of the wider search, where the first ones have holes; 1: no wider search.",
    )
    compares: Literal["prompts", "pictures"] = Field(
        "prompts",
        description="Things that a prompt is compared with; reuses = 'refine' always compares images.",
    )
    predictor: Literal["always", "svm", "sketch"] = "always"
    refit_requests: int = Field(
        0, ge=0, description="Least number of requests between two fits of the SVM; 0: as in serving."
    )
    state_codec: Literal[
        "auto",
        "fp16",
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
    ] = "fp16"
    keyframe_least: float = Field(
        0.995, ge=0, le=1, description="Least cosine of a frame that `keyframes` decodes: 0.995, or 0 as in the paper."
    )
    pairs: bool = Field(
        False, description="Also start from the object of one entry and the background of another (FlexCache §4.2)."
    )
    reuses: Literal["latent", "picture", "refine"] = Field(
        "latent",
        description="Start from states, return images unchanged, or refine them from a noise level (MoDM §4.3).",
    )
    min_similarity: float = Field(0.0, ge=0, le=1, description="Least similarity of an image returned unchanged.")
    raised_by: float = Field(0.0, ge=-1, le=1, description="Added to every threshold for starts from images.")
    capture_steps: tuple[int, ...] = (5, 10, 15, 20, 25)
    insert_on_hit: bool = False
    evict: Literal[SHELVES] = "fifo"  # type: ignore[valid-type]
    initial_uses: float = Field(1.0, ge=0)
    unlimited: bool = Field(False, description="Never evict, at any budget.")

    @model_validator(mode="after")
    def _pictures_leave_as_when_serving(self) -> Self:
        if self.reuses != "latent" and self.evict not in POLICIES:
            raise ValueError(f"evict: must be one of {', '.join(POLICIES)} for images (got {self.evict!r})")
        return self

    @model_validator(mode="after")
    def _raises_thresholds_of_pictures(self) -> Self:
        if self.raised_by and self.reuses != "refine":
            raise ValueError(
                f"raised_by: only a policy with reuses = 'refine' has thresholds for images (got {self.reuses!r})"
            )
        return self

    @model_validator(mode="after")
    def _was_measured(self) -> Self:
        if self.keyframe_least not in KEYFRAMES:
            known = " and ".join(f"{least:g}" for least in sorted(KEYFRAMES))
            raise ValueError(f"keyframe_least: was measured at {known} alone (got {self.keyframe_least:g})")
        return self

    @model_validator(mode="after")
    def _pairs_are_latents(self) -> Self:
        if self.pairs and (self.reuses != "latent" or self.lookup != "similar"):
            raise ValueError("pairs: only a policy that compares prompts and reuses latents has pairs")
        return self

    @model_validator(mode="after")
    def _keeps_what_the_services_would(self) -> Self:
        """Check `capture_steps` by the rules of shared/runtime/settings/cache.py; K = 0 and K = 50 are no states."""
        if any(not 0 < k < 50 for k in self.capture_steps):
            raise ValueError(f"capture_steps: every K must be from 1 to 49 of 50 (got {self.capture_steps})")
        if self.evict == "afterimage" and len(set(self.capture_steps)) > AFTERIMAGE_LEVELS:
            raise ValueError(
                f"capture_steps: afterimage takes at most {AFTERIMAGE_LEVELS} K (got {len(set(self.capture_steps))})"
            )
        return self

    @model_validator(mode="after")
    def _finds_pictures_above_what_is_listed(self) -> Self:
        if self.compares == "pictures" and self.reuses == "latent":
            raise ValueError("compares: only a policy that reuses images compares images (got reuses = 'latent')")
        least = MODM.lowest_similarity
        if self.compares == "pictures" and self.reuses == "picture" and self.min_similarity < least:
            raise ValueError(
                f"min_similarity: must be at least {least:.2f} if images are compared (got {self.min_similarity:g})"
            )
        return self

    def share_of_fp16(self, step: int, steps: int) -> float:
        """Return the bytes of a state after `step` of `steps` steps, relative to fp16. `auto` takes the codecs that the
        bundled large model has at this K."""
        codec = codec_of(self.state_codec, _large(), step, steps)
        if codec not in CODEC_SHARE:
            rule = "was measured on clips alone, and the trace has images; a study of clips sets `frames`"
            raise ConfigurationError(f"state_codec: {codec!r} {rule}")
        return CODEC_SHARE[codec]

    @property
    def clip_codec(self) -> str:
        """Return the codec's name in the measured bytes of clips."""
        return KEYFRAMES[self.keyframe_least] if self.state_codec == "keyframes" else self.state_codec

    @property
    def is_surrogate(self) -> bool:
        """Return whether lookups use surrogate similarities to images (services/replay/traces/surrogate.py)."""
        return self.reuses == "refine" or self.compares == "pictures"


@cache
def _large() -> ModelCard:
    return find_card(f"{BUNDLED_PREFIX}large")


def read_policy(name: str) -> PolicySettings:
    """Read a policy that ships, or a settings file (a path that ends in .toml).

    Raises ConfigurationError for an unknown name and for a wrong file.
    """
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{SAME.get(name, name)}.toml"
    if not path.is_file():
        raise ConfigurationError(f"policy {name!r}: give one of {', '.join(shipped())}, or a .toml file that exists")
    try:
        return PolicySettings.model_validate(read_toml(path, "policy"))
    except ValidationError as error:
        raise ConfigurationError(f"policy {path}: {in_words(error)}") from error


def shipped() -> Sequence[str]:
    """Return the names of the policies that ship."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))
