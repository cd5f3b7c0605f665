"""A model card: everything that a service must know about a model before or without loading its weights."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl

from shared.domain.cached import REUSE, STEERED
from shared.domain.errors import InvalidRequestError, ModelError
from shared.domain.types import CompatKey, Request, Size
from shared.models import hub
from shared.models.checkpoint import INDEX, faults, read_json
from shared.models.schedules import nearest_step, noise_process, same_noise_level, sampler_id
from shared.models.step_reuse import TRANSFORMERS, UNETS, StepReuse, read_step_reuse
from shared.models.weights import weights_hash
from shared.runtime.animated_png import FPS
from shared.runtime.telemetry import log

NOOP_PREFIX = "noop:"
"""Prefix of model paths for a denoiser that only waits, for benchmarks: `noop:?step_ms=1&row_ms=.2`."""
_HUB_NAME = r"[\w-][\w.-]*"


@dataclass(frozen=True)
class SizeRule:
    """Sizes that a model generates: the listed ones, or every multiple of `multiple_of` from `min_px` to `max_px`."""

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
class FrameRule:
    """Numbers of frames that a model generates; a model of images generates 1."""

    default: int = 1
    """Frames of a clip whose request names no length."""
    most: int = 1
    window: int = 0
    """Frames that temporal attention sees at once. Longer clips run with FreeNoise (Qiu et al. 2023, arXiv 2310.15169):
    overlapping windows of frames, and noise that repeats the first window's frames; 0: all frames at once."""
    stride: int = 4
    """Frames between the starts of two windows."""
    fps: float = 8.0
    """Frames per second at which a clip plays. The speed changes no frame."""
    multiple_of: int = 1
    """A clip has a multiple of these frames plus 1: a VAE that compresses time keeps the first frame apart."""
    per_latent: int = 1
    """Frames of pixels per latent frame after the first, where the VAE compresses time. Decides what users are shown;
    the loaded VAE decides what is generated."""
    overlap: int = 0
    """Last frames of a finished clip, at most, that a run holds to continue the clip; 0: a quarter of the run's."""

    def windows(self, frames: int) -> tuple[int, int]:
        """Return the window and stride of a clip that runs with FreeNoise; (0, 0) for any other clip."""
        return (self.window, self.stride) if 0 < self.window < frames else (0, 0)

    def of_seconds(self, seconds: float) -> int:
        """Return the length, nearest to `seconds`, that the rule allows, apart from `most`."""
        steps = round((seconds * self.fps - 1) / self.multiple_of)
        return max(steps, 0) * self.multiple_of + 1

    def held(self, frames: int, finished: int) -> int:
        """Return how many last frames of a clip of `finished` frames a run of `frames` holds to continue the clip."""
        most = min(self.overlap or max(frames // 4, 1), finished, frames - 1)
        return (most - 1) // self.multiple_of * self.multiple_of + 1

    def allows(self, frames: int) -> bool:
        return 1 <= frames <= self.most and (frames - 1) % self.multiple_of == 0

    def __str__(self) -> str:
        if self.most == 1:
            return "1"
        return f"from 1 to {self.most}" + (f", {self.multiple_of}k + 1" if self.multiple_of > 1 else "")


@dataclass(frozen=True)
class ModelCard:
    """A model's name, the place of its weights, and the limits of requests to it."""

    name: str
    """Name in requests, lanes and metrics."""
    path: str = ""
    """A folder in diffusers' layout, a hub id, or `noop:`; empty: the card's own folder."""
    family: str = "unet"
    """File of services/gpu_worker/families that runs the model; empty until its model_index.json is read."""
    role: str = "large"
    """`large` generates misses, `small` refines hits (MoDM §4.2), `video` generates clips."""
    sampler: str = "ddim"
    """One of gpu_worker/engine/samplers; its configuration is the checkpoint's own scheduler_config.json."""
    eta: float = 0.0
    """DDIM's η: 0 is deterministic."""
    default_size: Size = field(default_factory=lambda: Size(512, 512))
    default_steps: int = 50
    auto_steps: tuple[int, ...] = ()
    """T that a plan chooses among for a request without `steps`; empty: such a request runs `default_steps`."""
    unprompted: float = 0.0
    """Share of the steps, rounded up, that a run from noise makes first without its prompt, where a plan chose fewer
    than `default_steps`. Guidance at the highest noise costs variety, most of all in few steps (Kynkäänniemi et al.
    2024, limited interval)."""
    max_steps: int = 200
    default_guidance: float = 7.5
    guidance_min: float = 1.0
    guidance_max: float = 30.0
    sizes: SizeRule = field(default_factory=SizeRule)
    frames: FrameRule = field(default_factory=FrameRule)
    latent_channels: int = 4
    vae_scale: int = 8
    """Pixels per latent cell, each way; taken from the VAE's configuration if the weights are here."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format of the weights' computation; latents and the sampler are always float32."""
    denoiser_parameters: int = 0
    """Number of parameters; 0: unknown until the weights are on this disk."""
    text_parameters: int = 0
    vae_parameters: int = 0
    row_values: int = 0
    """Values that one row of the denoiser keeps alive in a forward pass at the default size and length: an estimate
    (bench.gpu.live_values)."""
    decode_values: int = 0
    """Values that decoding one image, or one clip of default length, keeps alive at the default size: an estimate."""
    k_table: str = ""
    """Similarity → K table beside the card, as `afterimage profile` writes it; empty: the paper's."""
    preview_factors: tuple[tuple[float, float, float], ...] = ()
    """Linear map from latent to RGB, one row per channel and a last one for the offset; empty: fitted from the VAE."""
    words: tuple[str, ...] = ()
    """Words that the model was trained on beyond the encoder's, such as those of motions: they count as known."""
    other_words: tuple[str, ...] = ()
    """Further ones that the encoder's vectors ignore: they raise no warning, but count as unknown for reuse."""
    about: str = ""
    """One sentence for readers."""
    reuse_with: tuple[str, int] | None = None
    """Settings `layout` and `patch_px` with which blocks may be reused between steps; None: `step_reuse` is off. Set by
    card_for, never written."""
    regions: bool = False
    """Starts from a latent compute only the patches that change (setting `regions`). Set by card_for, never written."""

    def __post_init__(self) -> None:
        if self.frames.window < 0 or not 1 <= self.frames.stride <= (self.frames.window or self.frames.stride):
            got = f"got {self.frames.stride} of {self.frames.window}"
            raise ValueError(f"frames: window must be 0 or more, stride from 1 to window ({got})")
        if not FPS[0] <= self.frames.fps <= FPS[1]:  # false for nan as well
            raise ValueError(f"frames: fps must be from {FPS[0]:g} to {FPS[1]:g} (got {self.frames.fps})")
        if self.frames.multiple_of < 1:
            raise ValueError(f"frames: multiple_of must be 1 or more (got {self.frames.multiple_of})")
        if self.frames.per_latent < 1 or self.frames.multiple_of % self.frames.per_latent:
            got = f"got {self.frames.per_latent} of {self.frames.multiple_of}"
            raise ValueError(f"frames: per_latent must be 1 or more and divide multiple_of ({got})")
        if self.frames.overlap < 0:
            raise ValueError(f"frames: overlap must be 0 or more (got {self.frames.overlap})")
        if not self.frames.allows(self.frames.default):
            raise ValueError(f"frames: default must be {self.frames} (got {self.frames.default})")
        if self.auto_steps and self.default_steps not in self.auto_steps:
            raise ValueError(f"auto_steps must contain default_steps, {self.default_steps} (got {self.auto_steps})")
        if not all(1 <= steps <= self.max_steps for steps in self.auto_steps):
            raise ValueError(f"auto_steps must be from 1 to max_steps, {self.max_steps} (got {self.auto_steps})")
        if not 0 <= self.unprompted < 1:
            raise ValueError(f"unprompted must be at least 0 and below 1 (got {self.unprompted})")

    @property
    def is_noop(self) -> bool:
        return self.path.startswith(NOOP_PREFIX)

    @property
    def noop_options(self) -> dict[str, str]:
        """Return the options in a no-op denoiser's path; empty for a real model."""
        return dict(parse_qsl(self.path.removeprefix(NOOP_PREFIX).lstrip("?"))) if self.is_noop else {}

    @cached_property
    def folder(self) -> Path:
        """Return the folder with the weights; a hub id is fetched, or found in the hub's cache, on first use.

        Raise ModelError with the path if it holds no weights.
        """
        return weights_folder(self)

    @cached_property
    def weights_hash(self) -> str:
        """Return 16 hex digits over everything that decides the model's images (docs/architecture.md, Equality)."""
        return noop_hash(self.path) if self.is_noop else weights_hash(self.folder)

    @cached_property
    def scheduler_config(self) -> dict[str, Any]:
        """Return the checkpoint's own scheduler_config.json."""
        if self.is_noop:
            return {"_class_name": "DDIMScheduler", "num_train_timesteps": 1000, "timestep_spacing": "trailing"}
        return read_json(self.folder / "scheduler" / "scheduler_config.json")

    @cached_property
    def sampler_id(self) -> str:
        """Return `name:hash` of the sampler and its configuration."""
        return sampler_id(self.sampler, self.scheduler_config, self.eta)

    @cached_property
    def step_reuse(self) -> StepReuse | None:
        """Return the forest that decides which blocks are reused between steps; None: all are computed.

        Logs why there is none although the settings ask for one, once per model and process."""
        if self.reuse_with is None:
            return None
        if self.is_noop or self.family not in (*UNETS, *TRANSFORMERS):
            found, why = None, f"family must be one of {', '.join((*UNETS, *TRANSFORMERS))} (got {self.family})"
        else:
            found, why = read_step_reuse(self.folder, self.family, self.weights_hash, *self.reuse_with)
        if found is None:
            _say_not_reused(self.name, why)
        return found

    @property
    def reuse_key(self) -> str:
        """Return the key of the forest and its settings; empty without reuse between steps."""
        return "" if self.step_reuse is None else self.step_reuse.key

    def compat(self, size: Size, steps: int, frames: int = 1) -> CompatKey:
        """Return the key that a latent must match to start an image or clip of this model (docs/architecture.md,
        Nouns)."""
        process = noise_process(self.sampler, self.scheduler_config, self.eta)
        if self.reuse_key:  # states made with reuse between steps start no run without it, nor the other way round
            process = f"{process}:{REUSE}{self.reuse_key}"
        if (windows := self.frames.windows(frames)) != (0, 0):  # the noise repeats
            process = ":".join([process, *map(str, windows)])
        return CompatKey(self.weights_hash, process, self.dtype, size, steps, frames)

    def compat_for(self, request: Request, steps: int = 0, guidance: float | None = None) -> CompatKey:
        """Return the key of a request's image. steps, guidance: of its run, where they differ from the request's.

        What a request steers away from shows in its states and its image. Those of a request with a negative prompt, or
        with another guidance than the model's own, counted in half octaves, start only requests that are steered alike.
        """
        key = self.compat(request.size, steps or request.steps, request.frames)
        steered = self._steered(request.negative_prompt, request.guidance if guidance is None else guidance)
        return replace(key, sampler=f"{key.sampler}:{STEERED}{steered}") if steered else key

    def _steered(self, negative_prompt: str, guidance: float) -> str:
        away = " ".join(negative_prompt.casefold().split()) if guidance > 1 else ""  # without guidance it has no effect
        octave = round(2 * math.log2(max(guidance, 1.0) / max(self.default_guidance, 1.0)))
        if not away and not octave:
            return ""
        return hashlib.sha256(f"{octave}\n{away}".encode()).hexdigest()[:12]

    def prompted_from(self, steps: int) -> int:
        """Return the number of steps that run without the prompt first, from noise, where a plan chose T = `steps`."""
        share = round(self.unprompted * steps, 9)  # .07 of 100 is 7.000000000000001
        return min(math.ceil(share), steps - 1) if steps < self.default_steps else 0

    def step_in(self, step: int, of: int, steps: int) -> int:
        """Return the step in a run of `steps` that equals `step` of `of`; 0 if no step has the same noise level."""
        start, rest = divmod(step * steps, of)
        levels = self.sampler, self.scheduler_config
        return start if not rest and same_noise_level(*levels, (step, of), (start, steps)) else 0

    def step_near(self, k: int, of: int, steps: int) -> int:
        """Return the step of a run of `steps` whose noise level is nearest to that after `k` of `of`, to start from an
        image.

        0 means the start of the run (MoDM §6: every model has a T of its own)."""
        return nearest_step(self.sampler, self.scheduler_config, (k, of), steps)

    def steps_for(self, steps: int, asked: ModelCard) -> int:
        """Return this model's T for a request with `steps` steps of the model `asked`.

        The default T maps to the default T, never to more steps than the request names. Models with equal default T
        run the request's steps."""
        if self.default_steps == asked.default_steps:
            return steps
        return self.default_steps if steps == asked.default_steps else min(steps, self.default_steps)

    def draws(self, size: Size, steps: int) -> bool:
        """Return whether the model accepts this size and number of steps."""
        return self.sizes.allows(size) and 1 <= steps <= self.max_steps

    def guidance_for(self, guidance: float, asked: ModelCard) -> float:
        """Return this model's guidance for a request with `guidance` of the model `asked`.

        The default maps to the default, any other value to the nearest one that this model accepts."""
        if guidance == asked.default_guidance:
            return self.default_guidance
        return min(max(guidance, self.guidance_min), self.guidance_max)

    def check(self, size: Size, steps: int, guidance: float, most_steps: int | None = None) -> None:
        """Raise InvalidRequestError with the field and the rule that a request to this model breaks.

        `most_steps` is the service's limit of steps, if it is below the card's."""
        if not self.sizes.allows(size):
            raise InvalidRequestError("size", f"model {self.name!r} generates {self.sizes}", size)
        most = min(self.max_steps, most_steps or self.max_steps)
        if not 1 <= steps <= most:
            raise InvalidRequestError("steps", f"model {self.name!r} takes 1 to {most}", steps)
        if not self.guidance_min <= guidance <= self.guidance_max:  # also refuses nan
            rule = f"model {self.name!r} takes {self.guidance_min:g} to {self.guidance_max:g}"
            raise InvalidRequestError("guidance", rule, guidance)


def is_hub_id(path: str) -> bool:
    """Return whether this may be `owner/name` or `owner/name@revision`; a revision is no path to another place."""
    return bool(re.fullmatch(rf"{_HUB_NAME}/{_HUB_NAME}(@{_HUB_NAME})?", path, re.ASCII))


def weights_folder(card: ModelCard) -> Path:
    """Return the folder of `card`'s weights on this disk; see ModelCard.folder."""
    folder = Path(card.path).expanduser()
    if (folder / INDEX).is_file():
        if wrong := faults(folder):
            raise ModelError(f"model {card.name!r}: path: {folder} is not whole: {wrong}; copy or fetch it again")
        return folder
    if folder.exists() or not is_hub_id(card.path):
        raise ModelError(f"model {card.name!r}: no weights in {folder} (no model_index.json there)")
    return hub.checkpoint(card.path, card.name)


@cache
def _say_not_reused(model: str, why: str) -> None:
    """Log this once per process, where each service has a card of its own."""
    log("step_reuse").warning("blocks are not reused", model=model, rule=why)


def noop_card(path: str) -> ModelCard:
    """Return the card of a denoiser that only waits: any size, any length, any T."""
    options = dict(parse_qsl(path.removeprefix(NOOP_PREFIX).lstrip("?")))
    return ModelCard(
        name=options.get("name", "noop"),
        path=path,
        family="noop",
        default_size=Size(64, 64),
        default_guidance=1.0,
        auto_steps=tuple(int(part) for part in options.get("auto_steps", "").split(",") if part),
        max_steps=1000,
        sizes=SizeRule(multiple_of=4, min_px=16),
        frames=FrameRule(default=int(options.get("frames", 1)), most=1000),
        vae_scale=4,
        about="Waits for a set time in each step instead of denoising",
    )


def noop_hash(path: str) -> str:
    """Return a weights hash of a no-op denoiser, computed from its URL."""
    return hashlib.sha256(path.encode()).hexdigest()[:16]
