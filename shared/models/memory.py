"""Memory of a loaded model: its weights, which are counted, and its activations, which are estimated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from shared.domain.types import Size
from shared.models.card import ModelCard
from shared.models.checkpoint import components, parameters

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes per value, by number format."""
WHOLE = ("ltx",)
"""Families whose VAE decodes all frames of a clip at once. The others decode a clip by parts."""

MOST_PIXELS = 2**27
"""Largest product of frames and pixels where the setting `max_pixels` is 0, however much memory is free: 128 frames of
1024×1024."""
USABLE = 0.6
"""Share of the free memory that estimated activations may take. They leave out the allocator's rounding, workspaces and
memory that a process keeps after a step: a step of clips once took 1.6 times its estimate (docs/families.md)."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a model in bytes; 0: unknown."""

    text: int
    denoiser: int
    vae: int
    batch: int
    """Activations of the denoiser for the whole batch: an estimate (see ModelCard.row_values)."""
    decoding: int
    """Activations of the VAE for one image, or the part of a clip that is decoded at once: an estimate."""

    @property
    def weights(self) -> int:
        return self.text + self.denoiser + self.vae

    @property
    def total(self) -> int:
        """Return the weights plus the larger activations of steps and decoding, which take turns."""
        return self.weights + max(self.batch, self.decoding)

    @property
    def by_turns(self) -> int:
        """Return the memory with `offload=model`: one component at a time on the device."""
        return max(self.text, self.denoiser + self.batch, self.vae + self.decoding)


def estimate(card: ModelCard, rows: int, frames: int = 0) -> Memory:
    """Estimate the memory for `rows` requests at the card's default size; guidance above 1 doubles each request's rows.

    frames: length of each clip; 0: the card's default. Activations grow with the frames, also in FreeNoise's windows,
    because all other layers see every frame at once. Decoding grows where the VAE decodes all frames at once (WHOLE).

    Weights are parameters times the bytes of the card's dtype. Activations are the values alive at the peak of one
    forward pass, without the allocator's rounding and reserves.
    """
    size = BYTES[card.dtype]
    longer = Fraction(frames or card.frames.default, card.frames.default)
    halves = 2 if card.default_guidance > 1 and card.family != "flux" else 1
    return Memory(
        text=card.text_parameters * size,
        denoiser=card.denoiser_parameters * size,
        vae=card.vae_parameters * size,
        batch=int(rows * halves * card.row_values * longer) * size,
        decoding=int(card.decode_values * (longer if card.family in WHOLE else Fraction(1))) * size,
    )


def pixel_limit(card: ModelCard, free_bytes: int) -> int:
    """Return the pixels, times frames, of requests of one model whose activations fit into `free_bytes` beside the
    weights; 0 where the card has no count of them. Guidance above 1 doubles the activations, as in `estimate`.

    At least the pixels of one request of the default size and length: an estimate alone refuses no such request.
    Activations grow with the pixels: attention is counted as fused (`ModelCard.row_values`).
    """
    need = estimate(card, rows=1).batch
    pixels = card.default_size.width * card.default_size.height * card.frames.default
    return max(int(USABLE * free_bytes * pixels / need), pixels) if need else 0


def largest_batch(card: ModelCard) -> Memory:
    """Estimate the memory of four images, or of the longest clip, which the engine runs without other clips."""
    return estimate(card, rows=1, frames=card.frames.most) if card.frames.most > 1 else estimate(card, rows=4)


def counted(card: ModelCard, folder: Path) -> ModelCard:
    """Return the card with the number of parameters in `folder`'s files, if they are there."""
    found = parameters(folder)
    text = sum(count for part, count in found.items() if part.startswith("text_encoder"))
    denoiser = found.get("transformer", 0) or found.get("unet", 0)
    if components(folder).get("unet") == "UNet2DConditionModel":  # else the UNet's file has the adapter's weights
        denoiser += found.get("motion_adapter", 0)
    return replace(
        card,
        text_parameters=text or card.text_parameters,
        denoiser_parameters=denoiser or card.denoiser_parameters,
        vae_parameters=found.get("vae", 0) or card.vae_parameters,
    )


def smallest(card: ModelCard) -> Size:
    """Return the smallest size that the card allows."""
    rule = card.sizes
    if rule.sizes:
        return min(rule.sizes, key=lambda size: size.width * size.height)
    side = -(-rule.min_px // rule.multiple_of) * rule.multiple_of
    return Size(side, side)


def said(count: int) -> str:
    """Format bytes for users."""
    if not count:
        return "?"
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def parameters_said(card: ModelCard) -> str:
    counts = {
        "denoiser": card.denoiser_parameters,
        "text encoders": card.text_parameters,
        "VAE": card.vae_parameters,
    }
    return " · ".join(f"{part} {_many(count)}" for part, count in counts.items() if count)


def _many(count: int) -> str:
    return f"{count / 1e6:,.1f} M" if count >= 1e6 else f"{count:,}"


def breakdown(card: ModelCard, need: Memory, offload: str) -> str:
    if not need.weights:
        return "not known before its weights are on this disk"
    parts = f"weights {said(need.weights)} in {card.dtype}"
    if card.row_values:
        what = f"a clip of {card.frames.most} frames" if card.frames.most > 1 else "a batch of 4"
        parts += f", {what} {said(need.batch)}, decoding {said(need.decoding)} (both estimated)"
    if offload == "model":
        return f"{parts}; with offload=model {said(need.by_turns)} on the device at a time"
    if offload == "sequential":
        return f"{parts}; with offload=sequential one layer, the VAE and the batch on the device at a time"
    return parts
