"""The common base of families over diffusers pipelines: loading, VAE encoding and decoding, cached prompts, rows
grouped by size."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, cached_property, lru_cache, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from services.gpu_worker.engine.layout import Pass, denoise_by_shape, step_rows
from services.gpu_worker.engine.layout_choice import LayoutChoice
from services.gpu_worker.engine.patches.auto_layout import AutoLayout
from services.gpu_worker.engine.patches.batch import Current
from services.gpu_worker.engine.patches.patched_model import PatchedModel
from services.gpu_worker.engine.reuse.block_reuse import BlockReuse, Policy
from services.gpu_worker.engine.rows import Pixels, PromptEncoding, Row, Stepped, draw_noise
from services.gpu_worker.engine.samplers import Sampler, make_sampler
from services.gpu_worker.families.offload import Residence
from services.gpu_worker.families.preview import fit_factors, project
from shared.domain.errors import ModelError
from shared.domain.truncation import undrawn
from shared.domain.types import Size
from shared.models import ModelCard
from shared.models.checkpoint import INDEX, left_out, read_json
from shared.models.step_reuse import LEAST_IMAGES
from shared.models.word_caches import keeping_no_words
from shared.runtime.telemetry import log


def load_pipeline(card: ModelCard, *classes: str, **own: Callable[[ModelCard], Any]) -> Any:
    """Load a checkpoint through DiffusionPipeline.from_pretrained: bundled, in a folder or from the hub.

    classes: diffusers' names of the pipelines that the card's family runs. own: components that the family loads by
    itself, in a dtype of its choice. Raises ModelError for another pipeline, and for weights that are missing, broken
    or not safetensors.
    """
    import diffusers
    import transformers

    if (found := read_json(card.folder / INDEX).get("_class_name")) not in classes:
        raise ModelError(f"model {card.name!r}: family {card.family!r} runs {' and '.join(classes)} (got {found})")
    dtype = getattr(torch, card.dtype)
    # no notices about torchvision, no progress bar per file
    for logging in (transformers.utils.logging, diffusers.utils.logging):
        logging.disable_progress_bar()
        logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # diffusers warns about checkpoints older than itself
        try:
            # only a pipeline's own class accepts a component that the class declares as optional
            pipeline = getattr(diffusers, classes[0] if own else "DiffusionPipeline").from_pretrained(
                card.folder,
                torch_dtype=dtype,
                use_safetensors=True,
                local_files_only=True,
                **dict.fromkeys(left_out(card.folder)),
                **{name: load(card) for name, load in own.items()},
            )
        except (OSError, ValueError, RuntimeError, AttributeError) as error:
            raise ModelError(f"model {card.name!r}: cannot load {card.folder}: {error}") from error
    pipeline.set_progress_bar_config(disable=True)
    for name, part in pipeline.components.items():
        # without accelerate, diffusers loads SD 3's text encoders in the dtype of their files, not in `torch_dtype`
        if isinstance(part, diffusers.ModelMixin) and name not in own and part.dtype != dtype:
            part.to(dtype)
    return pipeline


class PipelineFamily(ABC):
    """The components of a diffusers pipeline without its loop. A subclass adds prompt encoding and the denoiser's call.

    Latents are diffusers' own for the model, never packed: (C, h, w), or (C, F, h, w) of a ClipFamily. layout: groups,
    or the one that the family takes (LAYOUTS), or auto, which chooses between these two in each step by `choice`;
    `batch_invariant` keeps groups. patch_px: see UNetFamily.
    """

    denoiser_name: ClassVar[str] = "transformer"
    guidance_embedded = False
    slots_differ: ClassVar[bool] = False
    """True if a row's bits depend on its place in a batch; with `batch_invariant`, every row then runs alone."""

    def __init__(
        self,
        card: ModelCard,
        pipeline: Any,
        *,
        device: torch.device,
        batch_invariant: int = 0,
        prompts_kept: int = 512,
        offload: str = "none",
        layout: str = "groups",
        patch_px: int = 0,
        choice: LayoutChoice | None = None,
    ) -> None:
        self.card = card
        self.pipeline = pipeline
        for name, part in pipeline.components.items():
            if name.startswith("tokenizer"):
                keeping_no_words(part)
        self.device = device
        self.denoiser = getattr(pipeline, self.denoiser_name)
        # the pipeline corrects outdated scheduler configurations while loading, so its scheduler is the reference
        config = dict(pipeline.scheduler.config)
        self.sampler_named = cache(partial(self._make_sampler, config))
        self.sampler = self.sampler_named(card.sampler)
        self._batch_invariant = min(batch_invariant, 1) if self.slots_differ else batch_invariant
        self._encode = lru_cache(maxsize=prompts_kept)(self._encode_for)
        self._scale, self._shift = self._normal_latents()
        if card.dtype == "float16" and getattr(pipeline.vae.config, "force_upcast", False):
            pipeline.vae.to(torch.float32)  # SDXL's VAE overflows in half precision
        self._dtype = self.denoiser.dtype
        # before weights are placed: offloading hooks the operators
        mixed = None if layout == "groups" or batch_invariant else self._one_pass(patch_px)
        self.auto = AutoLayout(mixed, choice or LayoutChoice(), device) if mixed and layout == "auto" else None
        self._patched, self._mixed = mixed, self.auto or mixed
        self._reuse: BlockReuse | None = None
        self._forest = found = None if batch_invariant else card.step_reuse
        if found is not None:
            log("gpu_worker").info("blocks are reused", model=card.name, most=found.most, from_steps=found.steps)
            if found.images < LEAST_IMAGES:
                log("gpu_worker").warning("reuse was judged on few images", model=card.name, images=found.images)
        if found is not None or self.region_side:
            self.reuse_as_profiled()
        for module in self._modules.values():
            module.requires_grad_(False)
        text = [module for name, module in self._modules.items() if name.startswith("text_encoder")]
        parts = {"text": text, "denoiser": [self.denoiser], "vae": [pipeline.vae]}
        self._residence = Residence(parts, device, offload)

    # hooks for subclasses

    @property
    def _patch(self) -> int:
        """Latent cells per token side, for size-dependent sigmas."""
        return 2

    @property
    def _channels(self) -> int:
        return int(self.denoiser.config.in_channels)

    @property
    def _cell_px(self) -> int:
        """Pixels per latent cell, each way: the VAE's, since a hub id's card is written before the weights are here."""
        return int(self.pipeline.vae_scale_factor)

    def _mixing(self, patch_px: int) -> PatchedModel:
        """Change the denoiser so that images of different sizes run in one batch.

        Raises ValueError where the family has no such layout, and for a denoiser with modules that are not known; whole
        images then run as before.
        """
        raise ValueError(f"family {self.card.family} runs one size at a time")

    def _normal_latents(self) -> tuple[float | Tensor, float | Tensor]:
        """Return the VAE's scale and shift: the denoiser's latents are (VAE latents − shift) · scale."""
        config = self.pipeline.vae.config
        if getattr(config, "latents_mean", None) or getattr(config, "latents_std", None):
            rule = "vae/config.json: latents_mean and latents_std must be null"
            raise ModelError(f"model {self.card.name!r}: {rule}")
        return float(config.scaling_factor), float(getattr(config, "shift_factor", None) or 0.0)

    def _decoded(self, latents: Tensor) -> Tensor:
        """Run the VAE's decoder: (B, C, …) in its own units to (B, 3, …) from -1 to 1."""
        return self.pipeline.vae.decode(latents, return_dict=False)[0]

    @abstractmethod
    def _encode_prompt(self, prompt: str, negative: bool) -> PromptEncoding: ...

    @abstractmethod
    def _forward(
        self, latents: Tensor, timesteps: Tensor, encodings: Sequence[PromptEncoding], rows: Sequence[Row]
    ) -> Tensor: ...

    # common to all families

    def _one_pass(self, patch_px: int) -> PatchedModel | None:
        """Return the denoiser that runs all sizes in one batch; None, and a warning, where it cannot."""
        try:
            return self._mixing(patch_px)
        except ValueError as error:
            rule = f"layout: must be groups ({error})"
            log("gpu_worker").warning("one batch per size", model=self.card.name, rule=rule, runs="groups")
            return None

    @property
    def region_side(self) -> int:
        return self._patched.side if self.card.regions and self._patched is not None else 0

    @property
    def _modules(self) -> dict[str, torch.nn.Module]:
        components = self.pipeline.components.items()
        return {name: part for name, part in components if isinstance(part, torch.nn.Module)}

    @property
    def memory_bytes(self) -> int:
        return sum(p.numel() * p.element_size() for module in self._modules.values() for p in module.parameters())

    def _make_sampler(self, config: dict[str, Any], name: str) -> Sampler:
        eta = self.card.eta if name == self.card.sampler else 0.0
        return make_sampler(name, config, eta=eta, patch=self._patch)

    def encode_prompt(self, prompt: str, *, negative: bool = False, owner: str = "") -> PromptEncoding:
        # everybody's guided requests share the empty prompt, which tells nothing
        return self._encode(prompt, negative, owner if prompt else "")

    def _encode_for(self, prompt: str, negative: bool, owner: str) -> PromptEncoding:
        """owner: part of the cache's key alone."""
        return self._encode_prompt(prompt, negative)

    def forget_prompts(self) -> None:
        self._encode.cache_clear()

    def encode_picture(self, pixels: Pixels, frames: int = 1) -> Tensor:
        return self._encode_frames(pixels[None])[0]

    def latent_shape(self, size: Size, frames: int = 1) -> tuple[int, ...]:
        return self._channels, size.height // self._cell_px, size.width // self._cell_px

    def initial_noise(self, size: Size, generator: torch.Generator, frames: int = 1) -> Tensor:
        return draw_noise(self.latent_shape(size, frames), generator, self.card.frames.windows(frames)).to(self.device)

    def step(self, rows: Sequence[Row]) -> list[Stepped]:
        self._residence.bring("denoiser")
        return step_rows(rows, self._denoise)

    def _denoise(self, passes: Sequence[Pass]) -> list[Tensor]:
        forward = self._forward if self._reuse is None else self._reuse.during(self._forward)
        if self._mixed is not None:
            return self._mixed.denoise(passes, forward)
        return denoise_by_shape(passes, forward, self._batch_invariant)

    def reuse_blocks(self, policy: Policy | None, least_steps: int = 0) -> BlockReuse:
        """Reuse outputs of the denoiser's blocks between steps, as `policy` decides; None: compute all blocks.
        least_steps: T of the shortest runs that it decides about."""
        if self._reuse is None:
            current = Current() if self._patched is None else self._patched.current
            self._reuse = BlockReuse(self.denoiser, current)
        self._reuse.policy, self._reuse.least_steps = policy, least_steps
        if self._patched is not None and self.auto is None:
            self._patched.cut_from = least_steps if policy is not None and self._patched.per_patch else math.inf
        return self._reuse

    def reuse_as_profiled(self) -> None:
        """Reuse blocks as the card's forest decides, in runs of the T at which it was judged or more."""
        self.reuse_blocks(self._forest, self._forest.steps if self._forest else 0)

    def decode(self, latent: Tensor) -> Pixels:
        # decode one image at a time, so that its bits do not depend on images that finish in the same step
        return self._paint(latent[None])[0]

    def preview(self, clean: Tensor) -> Pixels:
        return project(clean.cpu().numpy(), self._preview_factors)

    @cached_property
    def _preview_factors(self) -> Any:
        return fit_factors(self.card.preview_factors, self._channels, self._cell_px, self._paint)

    def _encode_frames(self, pixels: Pixels) -> Tensor:
        """Encode (B, …, H, W, 3) to (B, C, …, h, w)."""
        self._residence.bring("vae")
        vae = self.pipeline.vae
        pictures = torch.from_numpy(pixels).to(self.device).movedim(-1, 1).float() / 127.5 - 1
        encoded = vae.encode(pictures.to(vae.dtype))
        return (_latent_of(encoded).float() - self._shift) * self._scale

    def _paint(self, latents: Tensor) -> Pixels:
        """Decode (B, C, …, h, w) to (B, …, H, W, 3)."""
        self._residence.bring("vae")
        scaled = (latents.to(self.device) / self._scale + self._shift).to(self.pipeline.vae.dtype)
        picture = self._decoded(scaled).float()
        return ((picture / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8).movedim(1, -1).cpu().numpy()


def _latent_of(encoded: Any) -> Tensor:
    """Return the latent of an encoder's output: AutoencoderKL returns a distribution, AutoencoderTiny latents,
    AutoencoderDC a latent."""
    if hasattr(encoded, "latent_dist"):
        return encoded.latent_dist.mode()
    return encoded.latents if hasattr(encoded, "latents") else encoded.latent


def read_to(prompt: str, tokenizer: Any, most: int, special: int) -> str:
    """Return the warning for a prompt of more than `most` tokens, of which `special` are not the prompt's own; empty
    when it fits."""
    length = len(tokenizer(prompt).input_ids)
    if length <= most:
        return ""
    return undrawn(most - special, length - special)


def stacked(encodings: Sequence[PromptEncoding], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Stack encodings that have a pooled vector to (B, tokens, width) and (B, width)."""
    pooled = [encoding.pooled for encoding in encodings if encoding.pooled is not None]
    return torch.stack([encoding.hidden for encoding in encodings]).to(dtype), torch.stack(pooled).to(dtype)
