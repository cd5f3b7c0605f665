"""All settings of Afterimage as one frozen value, read once from AFTERIMAGE_* variables and the command line."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.runtime.settings.cache import Cache
from shared.runtime.settings.jobs import Jobs
from shared.runtime.settings.lookup import Lookup
from shared.runtime.settings.maintenance import Maintenance
from shared.runtime.settings.models import Models
from shared.runtime.settings.monitor import Monitor
from shared.runtime.settings.network import Network
from shared.runtime.settings.segmentation import Segmentation
from shared.runtime.settings.storage import Storage
from shared.runtime.settings.telemetry import Telemetry
from shared.runtime.settings.tenants import Tenants

CLUSTER_CHECKPOINT_STEPS = 10
"""Maximum number of steps that a killed worker loses, if other workers can resume its jobs."""
CLUSTER_CHECKPOINT_GAP_S = 1.0
"""Minimum seconds between two checkpoints. Faster steps cost less to repeat than a checkpoint costs to write."""


class Settings(
    Lookup, Maintenance, Cache, Jobs, Monitor, Models, Segmentation, Telemetry, Network, Tenants, Storage, BaseSettings
):
    """The fields of all sections in one namespace: `settings.max_rows` is the variable AFTERIMAGE_MAX_ROWS."""

    model_config = SettingsConfigDict(env_prefix="AFTERIMAGE_", frozen=True, extra="forbid", populate_by_name=True)

    @model_validator(mode="after")
    def _check_regions(self) -> Self:
        if self.regions == "on" and (self.layout != "patches" or self.batch_invariant):
            got = f"got layout {self.layout}, batch_invariant {self.batch_invariant}"
            raise ValueError(f"regions: on needs layout=patches and batch_invariant=0 ({got})")
        return self

    @model_validator(mode="after")
    def _fill_checkpoints(self) -> Self:
        if self.checkpoint_gap_s < 0:
            gap = CLUSTER_CHECKPOINT_GAP_S if self.checkpoint_every_steps < 0 else 0.0
            object.__setattr__(self, "checkpoint_gap_s", gap)
        if self.checkpoint_every_steps < 0:  # when the only process ends, no other worker can resume its jobs
            every = 0 if self.bus_url.startswith("inprocess:") else CLUSTER_CHECKPOINT_STEPS
            object.__setattr__(self, "checkpoint_every_steps", every)
        return self
