"""Parts of a checkpoint give what its own pipeline gives: prompts, latents and the denoiser's prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from diffusers import ControlNetModel, StableDiffusionPipeline

from services.trainer.pipeline.runtime.checkpoint_parts import Checkpoint
from services.trainer.pipeline.runtime.splitting.chain import State
from tests import tiny_families
from tests.unit.trainer.pipeline.runtime.tiny_jobs import encode

PIXELS = 32


@dataclass(frozen=True)
class Row:
    caption: str
    seed: int


@dataclass(frozen=True)
class Images:
    rows: Sequence[Row] = field(default=(Row("a red cube", 1), Row("two cats on a mat", 2)))
    whole: int = 2
    size: int = PIXELS
    second_pass: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, start: int, stop: int) -> Images:
        return replace(self, rows=self.rows[start:stop])

    def pixels(self) -> torch.Tensor:
        made = [torch.rand(3, PIXELS, PIXELS, generator=torch.Generator().manual_seed(row.seed)) for row in self.rows]
        return torch.stack(made) * 2 - 1


@dataclass(frozen=True)
class At:
    noisy: torch.Tensor
    timesteps: torch.Tensor


class Plain:
    """Half noise."""

    def noised(self, latents: torch.Tensor, seeds: Sequence[int]) -> At:
        noise = [torch.randn(latents.shape[1:], generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        return At((latents + torch.stack(noise)) / 2, torch.full((len(seeds),), 500.0))

    def estimate(self, prediction: torch.Tensor, at: At) -> torch.Tensor:
        return at.noisy - prediction


def loss_sum(prediction: torch.Tensor, at: At) -> torch.Tensor:
    return (prediction - at.noisy).square().flatten(1).mean(dim=1).sum()


def sizes(rows: Images) -> Mapping[str, torch.Tensor]:
    return {"time_ids": torch.full((len(rows), 6), float(PIXELS))}


@torch.no_grad()
def fed(checkpoint: Checkpoint) -> tuple[State, torch.Tensor]:
    """Return the denoiser's inputs and the chain's prediction."""
    training, batch = checkpoint.training(), Images()
    part = training.backbones[0]
    state = part.feed(batch, encode(training, batch)).state  # type: ignore[arg-type]
    return state, part.chain({name: state[name] for name in part.chain.inputs})["prediction"]


@torch.no_grad()
def latents_of(pipeline: Any) -> torch.Tensor:
    config = pipeline.vae.config
    mode = pipeline.vae.encode(Images().pixels()).latent_dist.mode()
    found: torch.Tensor = (mode - float(config.shift_factor or 0.0)) * config.scaling_factor
    return Plain().noised(found, [1, 2]).noisy


@pytest.fixture(scope="module")
def sdxl() -> Any:
    return tiny_families.sdxl()


@torch.no_grad()
def test_sdxl(sdxl: Any) -> None:
    state, prediction = fed(Checkpoint(sdxl, sdxl.unet.eval(), Plain(), loss_sum, sizes))
    captions = [row.caption for row in Images().rows]
    hidden, _, pooled, _ = sdxl.encode_prompt(captions, device="cpu", do_classifier_free_guidance=False)
    assert torch.equal(state["encoder_hidden_states"], hidden)
    assert torch.equal(state["text_embeds"], pooled)
    assert torch.equal(state["sample"], latents_of(sdxl))
    added = {"text_embeds": pooled, "time_ids": state["time_ids"]}
    own = sdxl.unet(state["sample"], state["timestep"], encoder_hidden_states=hidden, added_cond_kwargs=added).sample
    assert torch.equal(prediction, own)


@torch.no_grad()
@pytest.mark.parametrize("third_encoder", [True, False])
def test_sd3(third_encoder: bool) -> None:
    pipeline = tiny_families.sd3(third_encoder=third_encoder)
    state, prediction = fed(Checkpoint(pipeline, pipeline.transformer.eval(), Plain(), loss_sum))
    captions = [row.caption for row in Images().rows]
    hidden, _, pooled, _ = pipeline.encode_prompt(captions, None, None, device="cpu", do_classifier_free_guidance=False)
    assert torch.equal(state["encoder_hidden_states"], hidden)
    assert torch.equal(state["pooled_projections"], pooled)
    own = pipeline.transformer(
        hidden_states=state["sample"], timestep=state["timestep"], encoder_hidden_states=hidden,
        pooled_projections=pooled,
    ).sample  # fmt: skip
    assert torch.equal(prediction, own)


@torch.no_grad()
def test_stable_diffusion_and_a_controlnet_over_it(sdxl: Any) -> None:
    from tests.unit.trainer.pipeline.runtime.tiny_jobs import tiny_unet

    width = sdxl.text_encoder.config.hidden_size
    unet = tiny_unet(cross_attention_dim=width, sample_size=PIXELS // 2).eval()
    pipeline = StableDiffusionPipeline(
        vae=sdxl.vae, text_encoder=sdxl.text_encoder, tokenizer=sdxl.tokenizer, unet=unet, scheduler=sdxl.scheduler,
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip
    checkpoint = Checkpoint(pipeline, unet, Plain(), loss_sum)
    state, prediction = fed(checkpoint)
    hidden, _ = pipeline.encode_prompt([row.caption for row in Images().rows], "cpu", 1, False)
    assert torch.equal(state["encoder_hidden_states"], hidden)
    assert torch.equal(prediction, unet(state["sample"], state["timestep"], encoder_hidden_states=hidden).sample)
    net = ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=(4, 8))
    job = checkpoint.controlnet_training(net, lambda rows: rows.pixels())
    part, encoded = job.backbones[0], encode(job, Images())  # type: ignore[arg-type]
    given = part.feed(Images(), encoded).state
    found = part.chain({name: given[name] for name in part.chain.inputs})["prediction"]
    assert torch.allclose(found, prediction, atol=1e-6), "a new ControlNet changes nothing"
