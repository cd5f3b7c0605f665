"""The parts of a checkpoint on one rank: its denoiser, its encoders, and the number format of its passes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from services.trainer.finetuning.loss import Objective, objective_of
from services.trainer.finetuning.model.checkpoint import Base, load_base
from services.trainer.finetuning.model.denoiser import CheckpointDenoiser
from services.trainer.finetuning.model.encoders import CheckpointEncoders
from services.trainer.finetuning.model.kept import KeptEncoders
from services.trainer.finetuning.settings import RunSettings
from services.trainer.finetuning.stepper import Encoders

FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that is ready for training."""

    base: Base
    denoiser: CheckpointDenoiser
    encoders: Encoders
    objective: Objective
    device: torch.device
    dtype: torch.dtype
    """Number format of the passes; trained weights are float32."""

    @property
    def autocast(self) -> torch.autocast | None:
        """Return what surrounds the denoiser's passes; None in float32."""
        return None if self.dtype == torch.float32 else torch.autocast(self.device.type, self.dtype)

    @property
    def modules(self) -> dict[str, Any]:
        """Return all components, the denoiser with what the settings add to it."""
        return self.base.pipeline.components | {self.base.denoiser_name: self.denoiser}


def load(settings: RunSettings, device: torch.device, encoded: Path) -> Loaded:
    """Load the checkpoint of a run onto a device; `encoded` is the folder for outputs of encoders, if they are kept."""
    base = load_base(settings.model)
    objective = objective_of(base.scheduler_config, settings.optimizer.min_snr_gamma)
    precision = settings.precision
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" else "fp32"
    dtype = FORMATS[precision]
    denoiser = CheckpointDenoiser(
        base.denoiser,
        lora=settings.lora,
        self_conditioned=settings.self_conditioning > 0,
        seed=settings.seed,
        dtype=dtype,
        recompute=settings.gradient_checkpointing,
    )
    for name, part in base.pipeline.components.items():
        if isinstance(part, torch.nn.Module):
            part.to(device)
            if name.startswith("text_encoder"):
                _narrow(part, dtype)
    plain = CheckpointEncoders(base.pipeline, base.denoiser)
    encoders: Encoders = KeptEncoders(plain, encoded, device, dtype) if settings.data.keep_encoded else plain
    return Loaded(base, denoiser, encoders, objective, device, dtype)


def _narrow(encoder: Any, dtype: torch.dtype) -> None:
    """Give a text encoder a number format; layers that overflow in fp16 stay in fp32, as transformers loads them."""
    encoder.to(dtype)
    wide = (encoder._keep_in_fp32_modules or ()) if dtype == torch.float16 else ()
    for name, module in encoder.named_modules():
        if name.rsplit(".", 1)[-1] in wide:
            module.float()
