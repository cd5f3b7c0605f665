"""The jobs of bench.pipeline_real: the bundled `large`, and a ControlNet over it, on random images."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from services.trainer.finetuning.batches import Batch, Row
from services.trainer.finetuning.loss import loss_sum, objective_of
from services.trainer.pipeline.runtime.checkpoint_parts import Checkpoint
from services.trainer.pipeline.runtime.parts import Training
from shared.domain.types import Size

JOBS = ("large", "controlnet")
SIZE = Size(64, 64)
CAPTIONS = ("a red ball on grass", "two blue cubes", "a green bird in the sky", "three yellow stars at night")


def batch_of(iteration: int, count: int, second_pass: bool) -> Batch:
    """Return the batch of an iteration: random images with captions, the same on every rank."""
    rows = []
    for at in range(count):
        number = count * iteration + at
        rows.append(Row(number, CAPTIONS[at % len(CAPTIONS)], seed=number, original=SIZE))
    return Batch(iteration, SIZE, tuple(rows), count, _pixels, second_pass)


def _pixels(row: Row, size: Size) -> torch.Tensor:
    generator = torch.Generator().manual_seed(row.index)
    return torch.randn(3, size.height, size.width, generator=generator).clamp(-1, 1)


def new_job(name: str, self_conditioned: bool) -> tuple[Training, nn.ModuleDict]:
    """Load a job; return it with its trained and its locked model."""
    from diffusers import ControlNetModel, DiffusionPipeline

    from shared.models import find_card

    torch.manual_seed(0)
    pipeline: Any = DiffusionPipeline.from_pretrained(find_card("large").folder, dtype=torch.float32)
    for part in (pipeline.vae, pipeline.text_encoder):
        part.requires_grad_(False).eval()
    scheduler = pipeline.scheduler
    objective = objective_of({"_class_name": type(scheduler).__name__, **scheduler.config})
    unet = pipeline.unet.train()
    checkpoint = Checkpoint(pipeline, unet, objective, loss_sum, self_conditioned=self_conditioned)
    if name == "large":
        if self_conditioned:
            unet.conv_in = _wide(unet.conv_in)
        return checkpoint.training(), nn.ModuleDict({"unet": unet})
    net = ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=(16, 32, 96))
    if self_conditioned:
        net.conv_in = _wide(net.conv_in)
    return checkpoint.controlnet_training(net, lambda rows: rows.pixels()), nn.ModuleDict({"unet": unet, "net": net})


def _wide(conv: nn.Conv2d) -> nn.Conv2d:
    """Return a first convolution with as many further channels, for the estimate."""
    return nn.Conv2d(2 * conv.in_channels, conv.out_channels, 3, padding=1)
