"""A model card: everything a service must know about a model before (or without) loading its weights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl

from shared.domain.errors import InvalidRequestError, ModelError
from shared.domain.types import CompatKey, Size
from shared.models import hub
from shared.models.checkpoint import INDEX, faults, read_json
from shared.models.schedules import nearest_step, same_noise_level, sampler_id
from shared.models.weights import weights_hash

NOOP_PREFIX = "noop:"
"""Model paths that begin so name a denoiser that only waits (benchmarks): `noop:?step_ms=1&row_ms=.2`."""


@dataclass(frozen=True)
class SizeRule:
    """Which sizes a model draws: the listed ones, or every multiple of `multiple_of` from `min_px` to `max_px`."""

    sizes: tuple[Size, ...] = ()
    multiple_of: int = 8
    min_px: int = 64
    max_px: int = 2048

    def allows(self, size: Size) -> bool:
        if self.sizes:
            return size in self.sizes
        return all(self.min_px <= px <= self.max_px and px % self.multiple_of == 0 for px in (size.width, size.height))

    def __str__(self) -> str:
        if self.sizes:
            return "one of " + ", ".join(str(size) for size in self.sizes)
        return f"width and height multiples of {self.multiple_of} from {self.min_px} to {self.max_px}"


@dataclass(frozen=True)
class ModelCard:
    """A model's name, where its weights are, and what may be asked of it."""

    name: str
    """How requests, lanes and metrics call it."""
    path: str = ""
    """A folder in diffusers' layout, a hub id, or `noop:`; empty: the folder the card lies in."""
    family: str = "unet"
    """File of services/gpu_worker/families that runs it; empty before anyone has seen its model_index.json."""
    role: str = "large"
    """`large` draws misses, `small` refines hits (MoDM §4.2)."""
    sampler: str = "ddim"
    """One of gpu_worker/engine/samplers.py; its configuration is the checkpoint's own scheduler_config.json."""
    eta: float = 0.0
    """DDIM's η: 0 is deterministic."""
    default_size: Size = field(default_factory=lambda: Size(512, 512))
    default_steps: int = 50
    max_steps: int = 200
    default_guidance: float = 7.5
    guidance_min: float = 1.0
    guidance_max: float = 30.0
    sizes: SizeRule = field(default_factory=SizeRule)
    latent_channels: int = 4
    vae_scale: int = 8
    """Pixels per latent cell, each way; where there are weights, their VAE says it and a card need not."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """What the weights compute in; latents and the sampler are always float32."""
    denoiser_parameters: int = 0
    """Numbers in the weights; 0: not known before they are on this disk."""
    text_parameters: int = 0
    vae_parameters: int = 0
    row_values: int = 0
    """Numbers that one forward row of the denoiser keeps alive at the default size: an estimate
    (bench.gpu.live_values)."""
    decode_values: int = 0
    """The same of one picture's decoding."""
    k_table: str = ""
    """Similarity → K table beside the card, as `afterimage profile` writes it; empty: the paper's."""
    preview_factors: tuple[tuple[float, float, float], ...] = ()
    """Linear latent → RGB map, one row per channel and a last one for the offset; empty: fitted from the VAE."""
    about: str = ""
    """One sentence for people."""

    @property
    def is_noop(self) -> bool:
        return self.path.startswith(NOOP_PREFIX)

    @property
    def noop_options(self) -> dict[str, str]:
        """What a no-op denoiser's path asks of it; empty for a real model."""
        return dict(parse_qsl(self.path.removeprefix(NOOP_PREFIX).lstrip("?"))) if self.is_noop else {}

    @cached_property
    def folder(self) -> Path:
        """The folder with the weights; a hub id is fetched (or found in the hub's cache) on first use.

        Raises ModelError naming the path when no weights are there.
        """
        return weights_folder(self)

    @cached_property
    def weights_hash(self) -> str:
        """16 hex digits over everything that decides what the model draws (design §2, Compatibility)."""
        return noop_hash(self.path) if self.is_noop else weights_hash(self.folder)

    @cached_property
    def scheduler_config(self) -> dict[str, Any]:
        """The checkpoint's own scheduler_config.json."""
        if self.is_noop:
            return {"_class_name": "DDIMScheduler", "num_train_timesteps": 1000, "timestep_spacing": "trailing"}
        return read_json(self.folder / "scheduler" / "scheduler_config.json")

    @cached_property
    def sampler_id(self) -> str:
        """`name:hash` of the sampler and its configuration."""
        return sampler_id(self.sampler, self.scheduler_config, self.eta)

    def compat(self, size: Size, steps: int) -> CompatKey:
        """What a latent must match to start a picture of this model (design §2, Compatibility)."""
        return CompatKey(
            weights_hash=self.weights_hash, sampler=self.sampler_id, dtype=self.dtype, size=size, steps=steps
        )

    def step_in(self, step: int, of: int, steps: int) -> int:
        """Where a latent after `step` of `of` steps stands in a run of `steps`; 0 where it has no exact place."""
        start, rest = divmod(step * steps, of)
        levels = self.sampler, self.scheduler_config
        return start if not rest and same_noise_level(*levels, (step, of), (start, steps)) else 0

    def step_near(self, k: int, of: int, steps: int) -> int:
        """The step of its run of `steps` whose noise level is nearest to that after `k` of `of`, for a start from a
        picture; 0 where that is the start of the run (MoDM §6: every model has a T of its own)."""
        return nearest_step(self.sampler, self.scheduler_config, (k, of), steps)

    def steps_for(self, steps: int, asked: ModelCard) -> int:
        """T of this model in a request of `steps` steps that was made for `asked`: default for default, and never more
        steps than the request names. Models with one default T run the request's."""
        if self.default_steps == asked.default_steps:
            return steps
        return self.default_steps if steps == asked.default_steps else min(steps, self.default_steps)

    def draws(self, size: Size, steps: int) -> bool:
        """Whether it may be asked for this size in so many steps."""
        return self.sizes.allows(size) and 1 <= steps <= self.max_steps

    def guidance_for(self, guidance: float, asked: ModelCard) -> float:
        """What stands for `guidance` here in a request that was made for `asked`: default for default, else the
        nearest that this model takes."""
        if guidance == asked.default_guidance:
            return self.default_guidance
        return min(max(guidance, self.guidance_min), self.guidance_max)

    def check(self, size: Size, steps: int, guidance: float, most_steps: int | None = None) -> None:
        """Raises InvalidRequestError naming the field and the rule that this model's request breaks; where it is served
        with fewer steps than it takes, `most_steps` is how many."""
        if not self.sizes.allows(size):
            raise InvalidRequestError("size", f"model {self.name!r} draws {self.sizes}", size)
        most = min(self.max_steps, most_steps or self.max_steps)
        if not 1 <= steps <= most:
            raise InvalidRequestError("steps", f"model {self.name!r} takes 1 to {most}", steps)
        if not self.guidance_min <= guidance <= self.guidance_max:  # also refuses nan
            rule = f"model {self.name!r} takes {self.guidance_min:g} to {self.guidance_max:g}"
            raise InvalidRequestError("guidance", rule, guidance)


def is_hub_id(path: str) -> bool:
    return path.count("/") == 1 and not path.startswith((".", "/", "~"))


def weights_folder(card: ModelCard) -> Path:
    """Where `card`'s weights lie on this disk; see ModelCard.folder."""
    folder = Path(card.path).expanduser()
    if (folder / INDEX).is_file():
        if wrong := faults(folder):
            raise ModelError(f"model {card.name!r}: path: {folder} is not whole: {wrong}; copy or fetch it again")
        return folder
    if folder.exists() or not is_hub_id(card.path):
        raise ModelError(f"model {card.name!r}: no weights in {folder} (no model_index.json there)")
    return hub.checkpoint(card.path, card.name)


def noop_card(path: str) -> ModelCard:
    """Card of a denoiser that only waits: any size, any T."""
    name = dict(parse_qsl(path.removeprefix(NOOP_PREFIX).lstrip("?"))).get("name", "noop")
    return ModelCard(
        name=name,
        path=path,
        family="noop",
        default_size=Size(64, 64),
        default_guidance=1.0,
        max_steps=1000,
        sizes=SizeRule(multiple_of=4, min_px=16),
        vae_scale=4,
        about="Waits a known time per step instead of denoising",
    )


def noop_hash(path: str) -> str:
    """A stand-in weights hash: what the URL says is what the denoiser does."""
    return hashlib.sha256(path.encode()).hexdigest()[:16]
