"""Settings of a training run: a TOML file with one table for each part of the run."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from services.trainer.pipeline.costs.profile_file import broken_setting
from shared.domain.errors import ConfigurationError
from shared.runtime.toml_file import read_toml

FULL_RATE, LORA_RATE = 1e-5, 1e-4
WARMUP = 100


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataSettings(_Table):
    """Captioned images."""

    path: str = Field(
        min_length=1,
        description="Folder with metadata.jsonl, WebDataset tar files (a name with *), or scenes: images to render.",
    )
    resolution: int = Field(
        0, ge=0, le=8192, description="Side in pixels of a square image; other shapes have its area. 0: the model's."
    )
    longest_ratio: float = Field(
        2.0, ge=1, le=8, description="Largest ratio of the sides of a bucket; 1 crops every image to a square."
    )
    held_out: float = Field(0.05, ge=0, le=0.5, description="Share of the images kept for the validation loss.")
    dropout: float = Field(
        0.1, ge=0, le=1, description="Share of the captions that are left out, for classifier-free guidance."
    )
    keep_encoded: bool = Field(
        False, description="Keep latents and prompt embeddings on disk: each image is encoded once."
    )
    scenes: int = Field(2000, ge=1, le=1_000_000, description="Number of scenes, where path is scenes.")
    sprites: Path = Field(Path("out/train/sprites"), description="Folder of the objects of scenes; fetched if empty.")


class OptimizerSettings(_Table):
    """AdamW, its learning rate, and the averaged weights."""

    rate: float = Field(0.0, ge=0, le=1, description="Learning rate after the warm-up. 0: 1e-5, for LoRA 1e-4.")
    schedule: Literal["cosine", "constant"] = Field("cosine", description="Learning rate after the warm-up.")
    warmup: int = Field(
        -1, description="Iterations in which the learning rate rises from 0. Below 0: 100, at most a tenth of the run."
    )
    betas: tuple[float, float] = Field((0.9, 0.999), description="Decay of AdamW's two averages.")
    weight_decay: float = Field(0.01, ge=0, le=1, description="AdamW's weight decay.")
    clip_norm: float = Field(1.0, ge=0, description="Largest norm of all gradients together; 0: no limit.")
    ema_decay: float = Field(
        0.999, ge=0, lt=1, description="Decay of the averaged weights, which are sampled and exported. 0: no average."
    )
    min_snr_gamma: float = Field(0.0, ge=0, description="γ of Min-SNR weights (5 in its paper); 0: equal weights.")

    @model_validator(mode="after")
    def _check_betas(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be at least 0 and below 1 (got {list(self.betas)})")
        return self


class LoraSettings(_Table):
    """Low-rank adapters instead of all weights."""

    rank: int = Field(16, ge=1, le=1024, description="Rank of the adapters.")
    alpha: float = Field(0.0, ge=0, description="Scale of the adapters times their rank. 0: the rank.")
    targets: tuple[str, ...] = Field(
        ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"),
        min_length=1,
        description="Ends of the names of the layers that get an adapter.",
    )


class ValidationSettings(_Table):
    """Validation loss and samples."""

    every: int = Field(200, ge=1, description="Iterations between two validation losses.")
    samples_every: int = Field(500, ge=1, description="Iterations between two sheets of samples.")
    prompts: tuple[str, ...] = Field((), max_length=64, description="Prompts of the samples; none: no samples.")
    steps: int = Field(25, ge=1, le=1000, description="Denoising steps of a sample.")
    guidance: float = Field(-1.0, le=100, description="Guidance of the samples. Below 0: the model's.")


class CheckpointSettings(_Table):
    """Checkpoints from which a run goes on."""

    every: int = Field(100, ge=1, description="Iterations between two checkpoints. A stopped run loses those since.")
    keep: int = Field(3, ge=1, le=1000, description="Number of checkpoints that are kept.")


class RanksSettings(_Table):
    """How several ranks share an iteration."""

    parallel: Literal["auto", "data", "pipeline"] = Field(
        "auto", description="data, pipeline, or what the planner predicts to be faster from `profile` (none: data)."
    )
    profile: Path | None = Field(
        None, description="Profile of the model and the cluster, for the planner. A pipeline without one is measured."
    )
    micro_batch: int = Field(
        0, ge=0, le=65_536, description="Images of one pass; gradients of several passes add up. 0: all at once."
    )
    timeout_s: float = Field(
        1800.0,
        ge=1,
        le=86_400,
        description="Seconds after which a rank that does not answer ends the run; samples must take less.",
    )


class RunSettings(_Table):
    """One fine-tuning run."""

    model: str = Field(min_length=1, description="Checkpoint: a folder, a hub id, or a bundled model.")
    out: Path = Field(description="Folder of the run and of the fine-tuned model.")
    iterations: int = Field(1000, ge=1, le=100_000_000, description="Iterations over the whole run.")
    batch: int = Field(8, ge=1, le=1_048_576, description="Images of one iteration, over all ranks.")
    seed: int = Field(0, ge=0, le=4_294_967_295, description="Seed of order, noise, timesteps, dropout and adapters.")
    device: str = Field("auto", description="auto, cpu or cuda; each rank takes the GPU of its local rank.")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="Number format of the passes. auto: bf16 on a GPU, fp32 on a CPU."
    )
    gradient_checkpointing: bool = Field(
        False, description="Compute activations again in the backward pass: less memory, more time."
    )
    self_conditioning: float = Field(
        0.0, ge=0, le=1, description="Share of the iterations with a second forward pass (self-conditioning)."
    )
    data: DataSettings
    optimizer: OptimizerSettings = OptimizerSettings()
    lora: LoraSettings | None = Field(None, description="Train adapters; without this table, all weights.")
    validation: ValidationSettings = ValidationSettings()
    checkpoints: CheckpointSettings = CheckpointSettings()
    ranks: RanksSettings = RanksSettings()

    @property
    def rate(self) -> float:
        """Return the learning rate after the warm-up."""
        return self.optimizer.rate or (FULL_RATE if self.lora is None else LORA_RATE)

    @property
    def warmup(self) -> int:
        """Return the iterations in which the learning rate rises."""
        asked = self.optimizer.warmup
        return min(WARMUP, self.iterations // 10) if asked < 0 else asked

    def check_ranks(self, world: int) -> None:
        """Raise ConfigurationError where a number of ranks does not suit the batch."""
        if self.batch < world:
            raise ConfigurationError(f"batch: must be at least the number of ranks, {world} (got {self.batch})")


def read_run_settings(path: Path, given: Mapping[str, Any]) -> RunSettings:
    """Return the settings of a TOML file; keys `given` on the command line replace the file's.

    Relative paths in the file are relative to the file. Raises ConfigurationError with path, key and rule.
    """
    keys = read_toml(path, "config")
    try:
        return RunSettings.model_validate(_beside(path.parent.resolve(), keys) | dict(given))
    except ValidationError as error:
        raise ConfigurationError(f"config {path}: {broken_setting(error, RunSettings)}") from None


def _beside(folder: Path, keys: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a file with its relative paths made relative to the file's folder."""

    def moved(value: object) -> object:
        return str(folder / value) if isinstance(value, str) and value else value

    found = dict(keys)
    if "out" in found:
        found["out"] = moved(found["out"])
    if isinstance(model := found.get("model"), str) and (folder / model).is_dir():
        found["model"] = moved(model)
    if isinstance(data := found.get("data"), dict):
        own = {name: moved(data[name]) for name in ("path", "sprites") if name in data}
        if isinstance(path := data.get("path"), str) and path.endswith(".tar"):
            own["path"] = str(Path(glob.escape(str(folder))) / path)  # only the file's own * ? [ make a pattern
        found["data"] = data | own | ({"path": "scenes"} if data.get("path") == "scenes" else {})
    if isinstance(ranks := found.get("ranks"), dict) and "profile" in ranks:
        found["ranks"] = ranks | {"profile": moved(ranks["profile"])}
    return found
