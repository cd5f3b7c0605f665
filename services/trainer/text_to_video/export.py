"""Export of the trained motion model as an AnimateDiffPipeline folder with its card."""

from __future__ import annotations

from pathlib import Path

from diffusers import AnimateDiffPipeline

from services.trainer.export import average_into, replace_folder, shipped_autoencoder
from services.trainer.rendering.clips import FRAMES
from services.trainer.text_to_video.denoiser import ClipDenoiser, begin_with, clip_words
from services.trainer.text_to_video.latents import SIDE
from services.trainer.text_to_video.training import NAME
from shared.domain.types import Size
from shared.models.card import FrameRule, ModelCard, SizeRule
from shared.models.card_lookup import VIDEO, write_card
from shared.models.scenes import known_words, motion_words

CARD = ModelCard(
    name=NAME,
    role=VIDEO,
    family="animatediff",
    default_size=Size(SIDE, SIDE),
    auto_steps=(10, 50),
    default_guidance=2.5,
    guidance_max=10.0,
    sizes=SizeRule(sizes=(Size(SIDE, SIDE),)),
    frames=FrameRule(default=FRAMES, most=4 * FRAMES, window=FRAMES, stride=4),
    vae_scale=4,
    row_values=5_410_000,
    decode_values=5_290_000,
    words=tuple(word for word in motion_words() if word not in known_words()),
    about=f"Generates clips of toy scenes that move, {FRAMES} frames of {SIDE}×{SIDE} pixels",
)
"""Card of the exported motion model."""


def trained_motion(work: Path, image_model: Path) -> ClipDenoiser:
    """Return the run's motion model with averaged weights; NotFoundError before the first checkpoint."""
    model = begin_with(image_model, clip_words(image_model))
    average_into([model], work / f"{NAME}.pt")
    return model.eval().requires_grad_(False)


def export_motion(work: Path, image_model: Path, target: Path) -> None:
    """Write `target` in fp16. The autoencoder is that of the models beside `image_model`."""
    model = trained_motion(work, image_model)
    pipeline = AnimateDiffPipeline(
        vae=shipped_autoencoder(image_model.parent).half(),
        text_encoder=model.text.half(),
        tokenizer=clip_words(image_model),
        unet=model.unet.half(),
        motion_adapter=None,
        scheduler=model.scheduler,
    )

    def write(folder: Path) -> None:
        pipeline.save_pretrained(folder, safe_serialization=True)
        write_card(CARD, folder)

    replace_folder(target, write)
