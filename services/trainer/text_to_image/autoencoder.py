"""Training of the autoencoder that both text-to-image models share: four latent channels at a quarter of the side."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderTiny

from services.trainer.rendering.renderer import SIZES, Renderer
from services.trainer.training import runs
from services.trainer.training.sitting import Sitting
from shared.models.scenes import held_out, random_scene

STRIDE = 4


@dataclass(frozen=True)
class AutoencoderPlan:
    """Training plan of the autoencoder: `steps`, or `seconds` of wall time over all runs, whichever ends first."""

    steps: int = 5354
    seconds: float = math.inf
    seed: int = 0
    rate: float = 2.5e-3
    crop_share: float = 0.6
    crop_side: int = 32
    crop_batch: int = 24
    picture_batch: int = 8
    latent_noise: float = 0.08
    checkpoint_every: int = 200


def new_autoencoder() -> AutoencoderTiny:
    """Return an untrained autoencoder; training keeps its latents near zero mean and unit deviation, so its scale is
    1."""
    return AutoencoderTiny(
        encoder_block_out_channels=(40, 40, 40),
        decoder_block_out_channels=(40, 40, 40),
        num_encoder_blocks=(0, 1, 2),
        num_decoder_blocks=(2, 1, 0),
        latent_channels=4,
        upsampling_scaling_factor=2,
        scaling_factor=1.0,
    )


def train_autoencoder(
    plan: AutoencoderPlan, sprites: Path, work: Path, start: Path | None = None, device: torch.device | None = None
) -> None:
    """Train until the plan is used up, and write `work/vae.pt`.

    Training continues from the last checkpoint if there is one, else from the exported weights in `start`, if given."""
    torch.set_num_threads(1)
    torch.manual_seed(plan.seed)
    renderer = Renderer(sprites)
    model = new_autoencoder().to(device or "cpu")
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.rate, betas=(0.9, 0.99), weight_decay=1e-3, fused=True)
    exported = (
        (lambda: AutoencoderTiny.from_pretrained(start, torch_dtype=torch.float32, use_safetensors=True).state_dict())
        if start
        else None
    )
    sitting = Sitting(
        "vae", work, {"model": model}, [optimizer],
        steps=plan.steps, seconds=plan.seconds, rate=plan.rate, start=exported,
    )  # fmt: skip
    while (begun := sitting.begin_step(plan.seed)) is not None:
        done, rng = begun
        pictures = _pictures(renderer, rng, plan, cropped=done < plan.crop_share).to(runs.device_of(model))
        loss, error = _loss(model, pictures, plan.latent_noise)
        sitting.end_step(loss)
        sitting.report(sitting.step, loss=loss.item(), psnr_db=10 * math.log10(4 / error))
        if sitting.step % plan.checkpoint_every == 0:
            sitting.save()
            sitting.average.swap()
            _grid(model, renderer, work / "vae.png")
            sitting.average.swap()
    sitting.save()
    sitting.plot()
    sitting.average.swap()
    runs.log.info("vae done", step=sitting.step, held_out_psnr_db=round(round_trip_psnr(model, renderer), 2))


def _loss(model: AutoencoderTiny, pictures: torch.Tensor, noise: float) -> tuple[torch.Tensor, float]:
    with runs.autocast(pictures.device):
        latents = model.encode(pictures).latents
        decoded = model.decode(latents + noise * torch.randn_like(latents)).sample
    decoded, latents = decoded.float(), latents.float()
    residual = decoded - pictures
    across = residual.diff(dim=-1).abs().mean() + residual.diff(dim=-2).abs().mean()
    squared = residual.square().mean()
    spread = latents.std(dim=(0, 2, 3)) - 1
    centred = latents.mean(dim=(0, 2, 3)).square().mean() + spread.square().mean()
    return residual.abs().mean() + 2 * squared + 0.5 * across + 0.02 * centred, squared.item()


def _pictures(renderer: Renderer, rng: random.Random, plan: AutoencoderPlan, cropped: bool) -> torch.Tensor:
    width, height = (64, 64) if rng.random() < 0.7 else SIZES[1 + rng.randrange(3)]
    found = []
    for _ in range(plan.crop_batch if cropped else plan.picture_batch):
        scene = random_scene(rng, natural_share=0.4)
        while held_out(scene):
            scene = random_scene(rng, natural_share=0.4)
        pixels = renderer.render(scene, width, height, rng.randrange(64)).pixels
        if cropped:
            x = rng.randrange((width - plan.crop_side) // STRIDE + 1) * STRIDE
            y = rng.randrange((height - plan.crop_side) // STRIDE + 1) * STRIDE
            if rng.random() < 0.6:  # the objects stand in the lower half
                y = (height - plan.crop_side) // STRIDE * STRIDE
            pixels = pixels[y : y + plan.crop_side, x : x + plan.crop_side]
        found.append(pixels)
    return runs.to_tensor(np.stack(found))


@torch.no_grad()
def round_trip_psnr(model: AutoencoderTiny, renderer: Renderer, count: int = 128) -> float:
    """Return the peak signal-to-noise ratio of held-out scenes, encoded and decoded, in dB (peak 2, values −1…1)."""
    rng = random.Random(99)
    scenes = [scene for scene in (random_scene(rng) for _ in range(count * 20)) if held_out(scene)][:count]
    pictures = runs.to_tensor(np.stack([renderer.render(s, layout=i).pixels for i, s in enumerate(scenes)]))
    pictures = pictures.to(runs.device_of(model))
    decoded = model.decode(model.encode(pictures).latents).sample.clamp(-1, 1)
    return float(10 * torch.log10(4 / (decoded - pictures).square().mean()))


@torch.no_grad()
def _grid(model: AutoencoderTiny, renderer: Renderer, path: Path) -> None:
    rng = random.Random(5)
    real = np.stack([renderer.render(random_scene(rng), layout=i).pixels for i in range(24)])
    back = runs.to_pictures(model.decode(model.encode(runs.to_tensor(real).to(runs.device_of(model))).latents).sample)
    rows = [row for i in range(0, 24, 12) for row in (*real[i : i + 12], *back[i : i + 12])]
    runs.save_grid(rows, 12, path, scale=2)
