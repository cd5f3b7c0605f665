"""What to plan for: the job, the cluster and the planner's choices, from a TOML file and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from services.trainer.pipeline.costs.profile_file import broken_setting
from services.trainer.pipeline.filling.iteration import MINIMUM_BUBBLE_S
from services.trainer.pipeline.filling.one_bubble import LOCAL_SIZES
from shared.domain.errors import ConfigurationError, InvalidRequestError
from shared.runtime.toml_file import read_toml

Counts = tuple[Annotated[int, Field(ge=1, le=1024)], ...]


class PlanSettings(BaseModel):
    """One training job on one cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    profile: Path | None = Field(None, description="Profile of the model and the cluster, a JSON file.")
    batch: int = Field(256, ge=1, le=1_048_576, description="Samples of one iteration, over all devices.")
    devices: int = Field(8, ge=1, le=4096, description="Devices of the cluster.")
    self_conditioning: float = Field(
        0.0, ge=0, le=1, description="Share of the iterations with a second forward pass (self-conditioning)."
    )
    stages: Counts = Field((), description="Numbers of stages to try; default: 2 to the group size.")
    micro_batches: Counts = Field((), description="Numbers of micro-batches to try; default: 1 to 32.")
    group_sizes: Counts = Field(
        (), description="Devices of one pipeline to try; groups train data-parallel. Default: 2 to 8."
    )
    equal_replicas: bool = Field(True, description="Every stage runs on the same number of devices.")
    device_memory_bytes: float | None = Field(
        None, gt=0, description="Memory of one device; plans that need more are dropped. Default: no limit."
    )
    fill: bool = Field(True, description="Run the frozen layers of the next iteration in the bubbles.")
    partial_batches: bool = Field(True, description="Split a frozen layer's batch over several bubbles.")
    minimum_bubble_s: float = Field(
        MINIMUM_BUBBLE_S, ge=0, le=60, description="Shorter bubbles stay empty, in seconds."
    )
    beam_width: int = Field(
        8, ge=1, le=256, description="States that the filling keeps after each bubble; 1 is the paper's algorithm."
    )

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.batch < self.devices:
            raise ValueError(f"batch must be at least the number of devices, {self.devices} (got {self.batch})")
        if wrong := [size for size in self.group_sizes if self.devices % size]:
            raise ValueError(f"group_sizes must divide the number of devices, {self.devices} (got {wrong[0]})")
        return self

    @property
    def local_sizes(self) -> tuple[int, ...]:
        return LOCAL_SIZES if self.partial_batches else ()


def read_settings(path: Path | None, given: Mapping[str, Any]) -> PlanSettings:
    """Return the settings of a TOML file; keys `given` on the command line replace the file's.

    A relative `profile` in the file is relative to the file. Raises ConfigurationError with the path for a wrong file,
    and InvalidRequestError for wrong keys without a file.
    """
    keys: dict[str, Any] = {}
    if path is not None:
        keys = read_toml(path, "config")
        if isinstance(keys.get("profile"), str):
            keys["profile"] = path.parent / keys["profile"]
    try:
        return PlanSettings.model_validate(keys | dict(given))
    except ValidationError as error:
        wrong = broken_setting(error, PlanSettings)
    if path is not None:
        raise ConfigurationError(f"config {path}: {wrong}")
    field, _, rule = wrong.partition(": ")
    raise InvalidRequestError(field, rule)
