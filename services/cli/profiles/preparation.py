"""Load the models of a profile, and collect the properties that its rows depend on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from shared.domain.errors import InvalidRequestError
from shared.domain.plan_rules import scale_steps
from shared.models.devices import placed
from shared.models.k_table import IMAGE_STEPS
from shared.runtime.settings import Settings

if TYPE_CHECKING:  # torch is imported when a profile runs, not when --help is read
    from services.cli.profiles.measure import Profiler
    from services.gpu_worker.families import Family


def prepared(
    settings: Settings,
    wanted: Sequence[int],
    starts: Sequence[int],
    fresh_noise: float,
    judge: tuple[Path | None, Path | None],
    images_from: str | None,
    against: str | None,
    reference_steps: int | None,
    console: Console,
) -> list[tuple[Profiler, dict[str, Any]]]:
    """Load the models; return for each T the profiler and the properties of its rows.

    wanted: values of T; empty: the model's default. starts: K of 50; empty: the steps that a cache keeps.
    judge: folders of the judge (None: the one that ships) and of the sprites.
    reference_steps: T of the reference; None: the first of `wanted`. A run resumes only when all properties are equal.
    """
    from services.cli.profiles.judging import judge_of
    from services.cli.profiles.measure import Profiler
    from services.embedder.encoder import Encoder, encoder_folder
    from services.gpu_worker.families import load_family
    from shared.models.card_lookup import served_card

    settings = placed(settings)
    card, device = served_card(settings), settings.device
    family = load_family(
        card, device=device, offload=settings.offload, layout=settings.layout, patch_px=settings.patch_px
    )
    eye = Encoder(encoder_folder(settings.encoder))
    pictures, measure = _others(settings, family, images_from, against, fresh_noise, device)
    frames = card.frames.default
    known, why_not = judge_of(frames, *judge)
    if why_not:
        console.print(Text(f"{why_not}: quality is the CLIP ratio alone", style="yellow"))
    of_50 = starts or (IMAGE_STEPS if pictures else settings.capture_steps)
    codec = settings.state_codec
    about = {
        "model": card.name,
        "weights_hash": card.weights_hash,
        "dtype": card.dtype,
        "encoder_hash": eye.hash,
        "codec": codec,
        "fresh_noise": fresh_noise,
        "judged": known is not None,
        **({"frames": frames} if frames > 1 else {}),
        **({"unprompted": card.unprompted} if card.unprompted else {}),
    }
    if settings.sampler != "auto":  # rows of earlier versions have the card's sampler
        about["sampler"] = card.sampler_id
    if card.reuse_key:
        about["step_reuse"] = card.reuse_key
    if pictures:
        about |= _of("images", "images_from", pictures)
    if measure:
        about |= _of("against", "against", measure)
    found = []
    reference = reference_steps or (wanted[0] if wanted else card.default_steps)
    for steps in wanted or [card.default_steps]:
        ks = list(scale_steps(of_50, steps))
        if not ks:
            raise InvalidRequestError("steps", f"must be large enough for one K of {of_50}, scaled from 50", steps)
        profiler = Profiler(
            family, eye, known, ks, steps, codec, fresh_noise, settings.max_rows, pictures, measure,
            reference,
        )  # fmt: skip
        apart = {"reference_steps": reference} if steps != reference else {}  # earlier versions compared T with itself
        found.append((profiler, about | {"steps": steps, "ks": ks} | apart))
    return found


def _of(prefix: str, name: str, family: Family) -> dict[str, str]:
    card = family.card
    return {name: card.name, f"{prefix}_weights_hash": card.weights_hash, f"{prefix}_dtype": card.dtype}


def _others(
    settings: Settings,
    family: Family,
    images_from: str | None,
    against: str | None,
    fresh_noise: float,
    device: str,
) -> tuple[Family | None, Family | None]:
    """Return the family of the images to start from, and the family of the reference; None: the measured family."""
    from services.gpu_worker.families import load_family
    from shared.models.card_lookup import card_for

    if images_from and fresh_noise:
        raise InvalidRequestError(
            "fresh_noise", "must be 0 with --images-from: images get new noise anyway", fresh_noise
        )
    if against and not images_from:
        raise InvalidRequestError(
            "against", "needs --images-from; the reference of latents is their own model", against
        )
    loaded = {family.card.name: family}

    def named(option: str, name: str) -> Family:
        card, size, frames = card_for(name, settings), family.card.default_size, family.card.frames.default
        if not card.sizes.allows(size):
            raise InvalidRequestError(option, f"must generate {size}; it generates {card.sizes}", name)
        if not card.frames.allows(frames):
            raise InvalidRequestError(option, f"must generate {frames} frames; it generates {card.frames}", name)
        if card.name not in loaded:
            loaded[card.name] = load_family(card, device=device, offload=settings.offload)
        elif loaded[card.name].card.weights_hash != card.weights_hash:
            raise InvalidRequestError(
                option, f"has the name of another model here, {card.name!r}; rename one card", name
            )
        return loaded[card.name]

    pictures = named("images_from", images_from) if images_from else None
    # a small model's image must be as good as the large model's (MoDM eq. 5)
    larger = pictures if pictures and pictures.card.role == "large" else family
    measure = named("against", against) if against else larger
    return pictures, measure if measure is not family else None
