"""The parts of a diffusers checkpoint for a pipeline: its denoiser as backbone, its encoders as frozen components.

Stable Diffusion 1.x and 2.x, SDXL and SD 3. The frozen part gives what the checkpoint's own pipeline gives: the mode of
the VAE's distribution, scaled, and the states of `encode_prompt`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
import torch.nn.functional as F

from services.trainer.pipeline.runtime.parts import Fed, FrozenPart, TrainedPart, Training
from services.trainer.pipeline.runtime.splitting.chain import Chain, State
from services.trainer.pipeline.runtime.splitting.controlnet import LOCKED, controlnet_chain, locked_encoder
from services.trainer.pipeline.runtime.splitting.encoders import clip_chain, vae_chain, whole
from services.trainer.pipeline.runtime.splitting.transformer import transformer_chain
from services.trainer.pipeline.runtime.splitting.unet import TEXT, unet_chain
from shared.domain.errors import ModelError

LATENTS = "latents"
T5_TOKENS = 256


class Captioned(Protocol):
    """A batch of images with captions; see `services.trainer.finetuning.batches.Batch`."""

    @property
    def size(self) -> Hashable: ...
    @property
    def second_pass(self) -> bool: ...
    @property
    def whole(self) -> int:
        """Number of samples of the iteration over all ranks."""
        ...

    @property
    def rows(self) -> Sequence[Any]:
        """Rows with `caption` and `seed`."""
        ...

    def __len__(self) -> int: ...
    def part(self, start: int, stop: int) -> Self: ...
    def pixels(self) -> torch.Tensor:
        """Read the images, (B, 3, H, W) in −1…1."""
        ...


class Objective(Protocol):
    """Noise process of a checkpoint; see `services.trainer.finetuning.loss.Objective`."""

    def noised(self, latents: torch.Tensor, seeds: Sequence[int]) -> Any:
        """Return noisy latents (`noisy`), `timesteps` and what the loss reads."""
        ...

    def estimate(self, prediction: torch.Tensor, at: Any) -> torch.Tensor: ...


LossSum = Callable[[torch.Tensor, Any], torch.Tensor]
"""(prediction, what `noised` returned) → sum of the samples' losses."""
Sizes = Callable[[Any], Mapping[str, torch.Tensor]]
"""Rows of a batch → conditions that no encoder makes, as SDXL's `time_ids`."""
Hints = Callable[[Any], torch.Tensor]
"""Rows of a batch → images that control, (B, 3, H, W)."""


@dataclass(frozen=True)
class _Target:
    at: Any
    whole: int


@dataclass(frozen=True)
class Checkpoint:
    """Models and functions that the parts are made of."""

    pipeline: Any
    """diffusers' pipeline with VAE, text encoders and tokenizers."""
    denoiser: Any
    objective: Objective
    loss_sum: LossSum
    sizes: Sizes | None = None
    self_conditioned: bool = False

    def training(self) -> Training:
        """Return the job that trains the denoiser. Raises ModelError for a model that cannot be cut."""
        make = unet_chain if hasattr(self.denoiser, "conv_in") else transformer_chain
        chain = make(self.denoiser, self_conditioned=self.self_conditioned)
        return Training((self._trained(chain),), self._encoders())

    def controlnet_training(self, net: Any, hints: Hints) -> Training:
        """Return the job that trains a ControlNet over the checkpoint's UNet, which is locked."""
        self.denoiser.requires_grad_(False)
        chain = controlnet_chain(net, self.denoiser, self_conditioned=self.self_conditioned)
        encoder = locked_encoder(self.denoiser)
        read = (*self._prepares(), *((TEXT,) if self._kind == "sd" else ()))
        locked = FrozenPart(encoder, lambda rows, encoded: self._fed(rows, encoded).state, read)
        return Training((self._trained(chain, hints),), (*self._encoders(), locked))

    def _trained(self, chain: Chain, hints: Hints | None = None) -> TrainedPart:
        def feed(rows: Any, encoded: Mapping[str, torch.Tensor]) -> Fed:
            fed = self._fed(rows, encoded)
            if hints is not None:
                fed.state["hint"] = hints(rows).to(fed.state["sample"].device)
            return fed

        def loss(prediction: torch.Tensor, target: _Target) -> torch.Tensor:
            return self.loss_sum(prediction, target.at) / target.whole

        def estimate(prediction: torch.Tensor, target: _Target) -> torch.Tensor:
            return self.objective.estimate(prediction, target.at)

        return TrainedPart(chain, feed, loss, self._prepares(), estimate if self.self_conditioned else None)

    def _fed(self, rows: Any, encoded: Mapping[str, torch.Tensor]) -> Fed:
        """Return a denoiser's inputs from the frozen part's outputs."""
        config = self.pipeline.vae.config
        shift = float(getattr(config, "shift_factor", None) or 0.0)
        latents = (encoded[LATENTS].float() - shift) * float(config.scaling_factor)
        at = self.objective.noised(latents, [row.seed for row in rows.rows])
        state: State = {"sample": at.noisy, "timestep": at.timesteps}
        state.update((name, one) for name, one in encoded.items() if name == TEXT or name.startswith(LOCKED))
        if self.sizes is not None:
            state.update(self.sizes(rows))
        if self._kind == "sdxl":
            state[TEXT] = torch.cat([encoded["states 1"], encoded["states 2"]], dim=-1)
            state["text_embeds"] = encoded["pooled 2"]
        elif self._kind == "sd3":
            clip = torch.cat([encoded["states 1"], encoded["states 2"]], dim=-1)
            long = encoded.get("states 3")
            if long is None:
                long = clip.new_zeros(len(clip), T5_TOKENS, self.denoiser.config.joint_attention_dim)
            state[TEXT] = torch.cat([F.pad(clip, (0, long.shape[-1] - clip.shape[-1])), long], dim=-2)
            state["pooled_projections"] = torch.cat([encoded["pooled 1"], encoded["pooled 2"]], dim=-1)
        return Fed(state, _Target(at, rows.whole))

    @property
    def _kind(self) -> str:
        if hasattr(self.denoiser.config, "joint_attention_dim"):
            return "sd3"
        return "sdxl" if self.denoiser.config.addition_embed_type == "text_time" else "sd"

    def _prepares(self) -> tuple[str, ...]:
        third = ("states 3",) if getattr(self.pipeline, "text_encoder_3", None) is not None else ()
        texts = {
            "sd": (),
            "sdxl": ("states 1", "states 2", "pooled 2"),
            "sd3": ("states 1", "states 2", *third, "pooled 1", "pooled 2"),
        }
        return (LATENTS, *texts[self._kind])

    def _encoders(self) -> tuple[FrozenPart, ...]:
        """Return the VAE's encoder and the text encoders."""
        pipeline, vae = self.pipeline, self.pipeline.vae

        def pixels(rows: Any, _: Mapping[str, torch.Tensor]) -> State:
            return {"pixels": rows.pixels().to(vae.device, vae.dtype)}

        found = []
        if self._kind == "sd":
            found.append(self._clip(pipeline.text_encoder, pipeline.tokenizer, "text encoder", last=TEXT))
        else:
            for number, suffix in ((1, ""), (2, "_2")):
                encoder = getattr(pipeline, f"text_encoder{suffix}")
                names = {"penultimate": f"states {number}"}
                if self._kind == "sd3" or number == 2:
                    names["pooled"] = f"pooled {number}"
                tokenizer = getattr(pipeline, f"tokenizer{suffix}")
                found.append(self._clip(encoder, tokenizer, f"text encoder {number}", **names))
        if "states 3" in self._prepares():
            found.append(self._t5())
        return (*found, FrozenPart(vae_chain(vae), pixels))

    def _clip(self, encoder: Any, tokenizer: Any, name: str, **made: str) -> FrozenPart:
        if getattr(encoder.config, "use_attention_mask", False):
            raise ModelError(f"{name}: use_attention_mask is not supported in a pipeline (got true)")
        ids = f"{name} ids"

        def feed(rows: Any, _: Mapping[str, torch.Tensor]) -> State:
            return {ids: _tokens(tokenizer, rows, tokenizer.model_max_length).to(encoder.device)}

        return FrozenPart(clip_chain(encoder, name, ids=ids, **made), feed)

    def _t5(self) -> FrozenPart:
        encoder, tokenizer = self.pipeline.text_encoder_3, self.pipeline.tokenizer_3

        def feed(rows: Any, _: Mapping[str, torch.Tensor]) -> State:
            return {"t5 ids": _tokens(tokenizer, rows, T5_TOKENS).to(encoder.device)}

        def run(state: Mapping[str, torch.Tensor]) -> State:
            return {"states 3": encoder(state["t5 ids"])[0]}

        return FrozenPart(whole("text encoder 3", ("t5 ids",), ("states 3",), encoder, run), feed)


def _tokens(tokenizer: Any, rows: Any, length: int) -> torch.Tensor:
    """Return the token ids of the captions, (B, length)."""
    captions = [row.caption for row in rows.rows]
    options = {"padding": "max_length", "max_length": length, "truncation": True, "return_tensors": "pt"}
    found: torch.Tensor = tokenizer(captions, **options).input_ids
    return found
