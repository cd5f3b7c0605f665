"""What a policy is: one settings file that says what is looked up, what is kept, and what leaves first."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from services.cache_maintainer.eviction.scored import POLICIES
from services.replay.simulated.general import SHELVES
from shared.domain.errors import ConfigurationError
from shared.models.k_table import MODM
from shared.runtime.settings.cache import AFTERIMAGE_LEVELS
from shared.runtime.settings_names import in_words

FOLDER = Path(__file__).parent / "policies"
"""The files that ship, one per name that a study takes."""

SAME = {"modm-cache-all": "modm"}
"""Other names of policies: MoDM keeps the pictures of all by default (§5.4)."""

CODEC_SHARE = {
    "fp16": 1.0, "int8": 0.455, "fp8": 0.416, "int6": 0.341, "int4": 0.235,
    "residual-2bit": 0.125, "residual-1bit": 0.063, "residual": 0.047, "residual-4x4": 0.012,
}  # fmt: skip
"""Bytes of a state beside fp16's, measured on the latent of a 512×512 picture that is all noise, the hardest to pack
(`python -m bench.state_codecs --bytes-only`). What each costs in quality is in bench/results/state_codecs.json."""


class PolicySettings(BaseModel):
    """A policy or baseline. `capture_steps` are K of T = 50."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    source: str = Field(description="Paper and section that it follows.")
    lookup: Literal["similar", "text", "none"] = "similar"
    candidates: int = Field(8, ge=1, le=200, description="Live neighbours among which the best state is sought.")
    further_candidates: int = Field(
        64,
        ge=1,
        le=1000,
        description="As many where those have holes where a later start is allowed; 1: never further.",
    )
    compares: Literal["prompts", "pictures"] = Field(
        "prompts", description="What a prompt is compared with; with pictures always where they are refined."
    )
    predictor: Literal["always", "svm", "sketch"] = "always"
    refit_requests: int = Field(
        0, ge=0, description="Least requests between two fits of the SVM; 0: it alone says when, as when serving."
    )
    state_codec: Literal[
        "fp16", "int8", "fp8", "int6", "int4", "residual-2bit", "residual-1bit", "residual", "residual-4x4"
    ] = "fp16"
    reuses: Literal["latent", "picture", "refine"] = Field(
        "latent", description="States; pictures as they are; or pictures brought to a noise level (MoDM §4.3)."
    )
    min_similarity: float = Field(0.0, ge=0, le=1, description="Of pictures handed out as they are.")
    raised_by: float = Field(0.0, ge=-1, le=1, description="Added to every threshold for starts from pictures.")
    capture_steps: tuple[int, ...] = (5, 10, 15, 20, 25)
    insert_on_hit: bool = False
    evict: Literal[SHELVES] = "fifo"  # type: ignore[valid-type]
    initial_uses: float = Field(1.0, ge=0)
    unlimited: bool = Field(False, description="Nothing is ever evicted, whatever the budget.")

    @model_validator(mode="after")
    def _pictures_leave_as_when_serving(self) -> Self:
        if self.reuses != "latent" and self.evict not in POLICIES:
            raise ValueError(f"evict: pictures leave by {', '.join(POLICIES)}, as when serving (got {self.evict!r})")
        return self

    @model_validator(mode="after")
    def _raises_thresholds_of_pictures(self) -> Self:
        if self.raised_by and self.reuses != "refine":
            raise ValueError(
                f"raised_by: a policy with reuses = 'refine' has thresholds for pictures (got {self.reuses!r})"
            )
        return self

    @model_validator(mode="after")
    def _keeps_what_the_services_would(self) -> Self:
        """As `capture_steps` of shared/runtime/settings/cache.py: a finished picture or noise is no state."""
        if any(not 0 < k < 50 for k in self.capture_steps):
            raise ValueError(f"capture_steps: every K lies between 1 and 49 of 50 (got {self.capture_steps})")
        if self.evict == "afterimage" and len(set(self.capture_steps)) > AFTERIMAGE_LEVELS:
            raise ValueError(f"capture_steps: afterimage learns of {AFTERIMAGE_LEVELS} K at most")
        return self

    @model_validator(mode="after")
    def _finds_pictures_above_what_is_listed(self) -> Self:
        if self.compares == "pictures" and self.reuses == "latent":
            raise ValueError("compares: prompts are compared with pictures where pictures are reused (reuses = latent)")
        least = MODM.lowest_similarity
        if self.compares == "pictures" and self.reuses == "picture" and self.min_similarity < least:
            raise ValueError(f"min_similarity: at least {least:.2f} of a picture (got {self.min_similarity:g})")
        return self

    @property
    def is_surrogate(self) -> bool:
        """Whether it looks for pictures by similarities that stand for theirs (services/replay/traces/surrogate.py)."""
        return self.reuses == "refine" or self.compares == "pictures"


def read_policy(name: str) -> PolicySettings:
    """A policy that ships, or a settings file (a path that ends in .toml); ConfigurationError else."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{SAME.get(name, name)}.toml"
    if not path.is_file():
        raise ConfigurationError(f"policy {name!r}: not among {', '.join(shipped())}, and no .toml file")
    try:
        return PolicySettings.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise ConfigurationError(f"policy {path}: {in_words(error)}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"policy {path}: no TOML: {error}") from error


def shipped() -> Sequence[str]:
    """Names of the policies that ship."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))
