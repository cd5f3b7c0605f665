"""Export of trained models in the layout of a hub checkpoint: fp16 safetensors in diffusers' and transformers'
folders."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from diffusers import AutoencoderTiny, StableDiffusionPipeline
from torch import nn
from transformers import CLIPImageProcessor, CLIPModel

from services.trainer.clip_pair import IMAGE_SIDE, pair_config, tokenizer_at
from services.trainer.judging.classifier import JudgeNet, save_judge
from services.trainer.judging.confidence import Pass, Pictures
from services.trainer.text_to_image.architecture import SHAPES
from services.trainer.text_to_image.autoencoder import new_autoencoder
from services.trainer.text_to_image.denoiser import Denoiser
from services.trainer.training import runs
from services.trainer.words import Words, write_known_words
from shared.domain.errors import NotFoundError
from shared.models.card_lookup import BUNDLED, SHIPPED, write_card


def trained_autoencoder(work: Path) -> AutoencoderTiny:
    """Return the run's autoencoder with averaged weights, ready to encode; NotFoundError before the first
    checkpoint."""
    model = new_autoencoder()
    average_into([model], work / "vae.pt")
    return model.eval().requires_grad_(False)


def autoencoder_at(work: Path, models: Path = BUNDLED) -> AutoencoderTiny:
    """Return the autoencoder of the run in `work`, or the shipped one in `models` if none was trained."""
    if (work / "vae.pt").exists():
        return trained_autoencoder(work)
    runs.log.info("no autoencoder was trained here: the one that ships", models=str(models))
    return shipped_autoencoder(models)


def shipped_autoencoder(models: Path = BUNDLED) -> AutoencoderTiny:
    """Return the autoencoder that the models in `models` share, in float32; NotFoundError if there is none."""
    found = sorted(models.glob("*/vae"))  # every model ships a copy of the same autoencoder
    if not found:
        raise NotFoundError(f"no autoencoder in {models}: train it first")
    model = new_autoencoder()  # a loaded configuration would name the folder of the weights
    model.load_state_dict(
        AutoencoderTiny.from_pretrained(found[0], torch_dtype=torch.float32, use_safetensors=True).state_dict()
    )
    return model.eval().requires_grad_(False)


def through(vae: AutoencoderTiny) -> Pass:
    """Return a function that encodes and decodes images (B, height, width, 3) uint8."""

    @torch.no_grad()
    def passed(pictures: Pictures) -> Pictures:
        return runs.to_pictures(vae.decode(vae.encode(runs.to_tensor(pictures).to(vae.device)).latents).sample)

    return passed


def trained_denoiser(work: Path, name: str) -> Denoiser:
    """Return the run's denoiser and text encoder with averaged weights; NotFoundError before the first checkpoint."""
    model = Denoiser(SHAPES[name], Words(tokenizer_at(work)))
    average_into([model.unet, model.text], work / f"{name}.pt")
    return model.eval().requires_grad_(False)


def trained_pair(work: Path) -> CLIPModel:
    """Return the run's text and image towers with averaged weights; NotFoundError before the first checkpoint."""
    model = CLIPModel(pair_config(Words(tokenizer_at(work))))
    average_into([model], work / "clip.pt")
    return model.eval().requires_grad_(False)


def export_denoiser(work: Path, name: str, target: Path) -> None:
    """Write `target` as a StableDiffusionPipeline folder, with its card beside the weights."""
    model = trained_denoiser(work, name)
    pipeline = StableDiffusionPipeline(
        vae=autoencoder_at(work).half(),
        text_encoder=model.text.half(),
        tokenizer=tokenizer_at(work),
        unet=model.unet.half(),
        scheduler=model.scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )

    def write(folder: Path) -> None:
        pipeline.save_pretrained(folder, safe_serialization=True)
        write_card(SHIPPED[name], folder)

    replace_folder(target, write)


def export_pair(work: Path, target: Path) -> None:
    """Write `target` as a CLIPModel folder with tokenizer, image processor and known words."""

    def write(folder: Path) -> None:
        trained_pair(work).half().save_pretrained(folder, safe_serialization=True)
        tokenizer_at(work).save_pretrained(folder)
        image_processor().save_pretrained(folder)
        write_known_words(folder / "known_words.json")

    replace_folder(target, write)


def export_judge(work: Path, target: Path, name: str = "judge") -> None:
    """Write `target` as the classifier of the run `name`."""
    net = JudgeNet()
    average_into([net], work / f"{name}.pt")
    replace_folder(target, lambda folder: save_judge(net, folder))


def image_processor() -> CLIPImageProcessor:
    """Return the image tower's preprocessing: resize to a square, never crop, −1…1."""
    side = {"height": IMAGE_SIDE, "width": IMAGE_SIDE}
    return CLIPImageProcessor(
        size=side, do_center_crop=False, crop_size=side, image_mean=[0.5, 0.5, 0.5], image_std=[0.5, 0.5, 0.5]
    )


def average_into(modules: list[nn.Module], path: Path) -> None:
    """Load the averaged weights of a checkpoint into modules; NotFoundError without the checkpoint."""
    state = runs.load_checkpoint(path)
    if state is None:
        raise NotFoundError(f"no checkpoint at {path}: train it first")
    average = runs.Average(modules)
    average.load_state_dict(state["average"])
    average.swap()


def replace_folder(target: Path, write: Callable[[Path], None]) -> None:
    """Write a folder beside `target` and rename it to `target`, so that no reader sees an incomplete folder."""
    fresh, old = target.with_name(target.name + ".new"), target.with_name(target.name + ".old")
    if old.exists() and not target.exists():  # an export was killed between the two renames below
        old.rename(target)
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh.parent.mkdir(parents=True, exist_ok=True)
    write(fresh)
    if (target / "README.md").exists():  # the README is written by hand and stays; tables belong to the old weights
        shutil.copy2(target / "README.md", fresh / "README.md")
    for path in fresh.rglob("*.safetensors"):
        path.chmod(0o644)  # safetensors writes files that only their owner can read
    if target.exists():
        target.rename(old)
    fresh.rename(target)
    shutil.rmtree(old, ignore_errors=True)
