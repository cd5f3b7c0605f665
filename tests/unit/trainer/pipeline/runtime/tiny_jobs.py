"""Tiny training jobs of real architectures, and how one rank or one process runs them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from diffusers import AutoencoderKL, ControlNetModel, UNet2DConditionModel
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel

from services.trainer.pipeline.costs.profile import (
    Backbone,
    FrozenComponent,
    FrozenLayer,
    Link,
    Profile,
    TrainableLayer,
)
from services.trainer.pipeline.plans import Plan, filled, make_plan
from services.trainer.pipeline.runtime.executor import PipelineExecutor
from services.trainer.pipeline.runtime.parts import Fed, FrozenPart, TrainedPart, Training
from services.trainer.pipeline.runtime.profiling import measured_profile
from services.trainer.pipeline.runtime.splitting.chain import State, trainable
from services.trainer.pipeline.runtime.splitting.controlnet import controlnet_chain, locked_encoder
from services.trainer.pipeline.runtime.splitting.encoders import clip_chain, vae_chain
from services.trainer.pipeline.runtime.splitting.unet import unet_chain
from services.trainer.pipeline.settings import PlanSettings

SIDE, TOKENS, WIDE = 8, 5, 8
"""Pixels of a latent's side, tokens of a prompt, width of text states."""
ITERATIONS = 20
RATE = 0.05
TIMEOUT = timedelta(seconds=60)


@dataclass(frozen=True)
class Samples:
    """Rows of one iteration's batch; everything in a row follows from its number."""

    iteration: int
    start: int
    stop: int
    whole: int
    second_pass: bool = False
    size: int = SIDE

    def __len__(self) -> int:
        return self.stop - self.start

    def part(self, start: int, stop: int) -> Samples:
        return replace(self, start=self.start + start, stop=self.start + stop)

    def drawn(self, what: str, *shape: int) -> torch.Tensor:
        """Return random numbers of each row, (B, …)."""
        seeds = [hash_of(what) + 1000 * self.iteration + row for row in range(self.start, self.stop)]
        return torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds])

    def ids(self) -> torch.Tensor:
        return (self.drawn("ids", TOKENS) * 8).long().abs().clamp(max=30)


ODD = Samples(99, 0, 5, 5)
"""Samples to evaluate; not as many as a batch."""


def hash_of(what: str) -> int:
    return sum(map(ord, what)) * 100_000


def tiny_unet(**more: Any) -> UNet2DConditionModel:
    config: dict[str, Any] = {
        "sample_size": SIDE,
        "block_out_channels": (8, 16),
        "norm_num_groups": 4,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "layers_per_block": 1,
        "cross_attention_dim": WIDE,
        "attention_head_dim": 4,
    }
    return UNet2DConditionModel(**config | more)


def tiny_text() -> CLIPTextModel:
    sizes = {"hidden_size": WIDE, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 31, "pad_token_id": 0}
    return CLIPTextModel(CLIPTextConfig(vocab_size=32, max_position_embeddings=TOKENS, **sizes, **ends))


def tiny_vae() -> AutoencoderKL:
    return AutoencoderKL(
        block_out_channels=(8, 8),
        norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=1,
    )


def noised(batch: Samples, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return noisy latents, timesteps and the noise."""
    noise = batch.drawn("noise", 4, batch.size, batch.size)
    times = (batch.drawn("time").sigmoid() * 999).long()
    level = (times / 1000).view(-1, 1, 1, 1)
    return (1 - level) * latents + level * noise, times, noise


def loss(prediction: torch.Tensor, target: Any) -> torch.Tensor:
    noise, whole = target
    return F.mse_loss(prediction.float(), noise, reduction="none").flatten(1).mean(dim=1).sum() / whole


def estimate(prediction: torch.Tensor, target: Any) -> torch.Tensor:
    return prediction - target[0]


def feed(batch: Samples, encoded: Mapping[str, torch.Tensor], hint: bool = False) -> Fed:
    sample, times, noise = noised(batch, encoded["latents"])
    state = {"sample": sample, "timestep": times, "encoder_hidden_states": encoded["states"]}
    state.update({name: one for name, one in encoded.items() if name.startswith("locked.")})
    if hint:
        state["hint"] = batch.drawn("hint", 3, 8 * batch.size, 8 * batch.size)
    return Fed(state, (noise, batch.whole))


def feed_locked(batch: Samples, encoded: Mapping[str, torch.Tensor]) -> State:
    return feed(batch, encoded).state


def encoders() -> tuple[FrozenPart, ...]:
    text, vae = tiny_text().eval(), tiny_vae().eval()
    for module in (text, vae):
        module.requires_grad_(False)
    return (
        FrozenPart(clip_chain(text, "text", ids="ids", last="states"), lambda batch, _: {"ids": batch.ids()}),
        FrozenPart(
            vae_chain(vae), lambda batch, _: {"pixels": batch.drawn("pixels", 3, 2 * batch.size, 2 * batch.size)}
        ),
    )


READ = ("latents", "states")


def unet_job(twice: bool = False) -> Training:
    """A UNet with its encoders, self-conditioned on request."""
    chain = unet_chain(tiny_unet(in_channels=8 if twice else 4), self_conditioned=twice)
    return Training((TrainedPart(chain, feed, loss, READ, estimate if twice else None),), encoders())


def controlnet_job(twice: bool = False) -> Training:
    """A ControlNet over a locked UNet; what is zero in a new one is random here, so that everything trains."""
    unet = tiny_unet()
    config = {"conditioning_embedding_out_channels": (4, 8, 8, 8)}
    net = ControlNetModel.from_unet(unet, **config)
    if twice:
        net.conv_in = nn.Conv2d(8, 8, 3, padding=1)
    unet.requires_grad_(False)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.1)
    chain = controlnet_chain(net, unet, self_conditioned=twice)
    part = TrainedPart(chain, partial(feed, hint=True), loss, READ, estimate if twice else None)
    return Training((part,), (*encoders(), FrozenPart(locked_encoder(unet), feed_locked, READ)))


def cascade_job() -> Training:
    """Two UNets of different sizes."""
    parts = [
        TrainedPart(unet_chain(tiny_unet(**more), name), feed, loss, READ)
        for name, more in (("base", {}), ("upper", {"block_out_channels": (8, 8), "layers_per_block": 1}))
    ]
    return Training(tuple(parts), encoders())


def late_job() -> Training:
    """A UNet of which only the last blocks train, as with adapters: nothing returns to the first stage."""
    training = unet_job()
    for name, parameter in trained_of(training).items():
        parameter.requires_grad_(name.startswith("up_blocks.1"))
    return training


JOBS: dict[str, Callable[[], Training]] = {
    "unet": unet_job,
    "unet twice": partial(unet_job, True),
    "controlnet": controlnet_job,
    "controlnet twice": partial(controlnet_job, True),
    "cascade": cascade_job,
    "late": late_job,
}


@dataclass(frozen=True)
class Case:
    """One job on one cluster."""

    job: str = "unet"
    ranks: int = 2
    stages: int = 2
    micro_batches: int = 2
    batch: int = 8
    group: int = 0
    """Ranks of one pipeline; 0: all."""
    fill: bool = True
    partial_batches: bool = True
    frozen_s: float = 0.2
    """Time of a frozen layer for one sample; a trained layer takes 1 s forward and 2 s backward."""
    self_conditioning: float = 0.0
    iterations: int = ITERATIONS
    measured: bool = False
    """Plan with times that the ranks measure."""
    recompute: bool = False
    mixed: bool = False
    """The backbone runs under autocast to bfloat16."""
    equal_replicas: bool = True
    sizes: tuple[int, ...] = (SIDE,)
    """Sides of the latents, in turns."""
    accumulate: int = 1
    """Iterations whose gradients add up before an update."""


def batch_of(case: Case, iteration: int) -> Samples:
    twice = case.self_conditioning > 0 and iteration % 2 == 0
    size = case.sizes[iteration % len(case.sizes)]
    return Samples(iteration, 0, case.batch, case.batch, twice, size)


def new_job(case: Case) -> Training:
    torch.manual_seed(0)
    return JOBS[case.job]()


def profile_of(training: Training, case: Case) -> Profile:
    """Return a profile with made-up times: they decide the order of steps, not what they compute."""
    sizes = (1,)
    backbones = tuple(
        Backbone(
            name=part.chain.name,
            local_batch_sizes=sizes,
            layers=tuple(
                TrainableLayer(name=layer.name, forward_s=(1.0,), backward_s=(2.0,)) for layer in part.chain.layers
            ),
        )
        for part in training.backbones
    )
    makers = {name: part.chain.name for part in training.frozen for name in part.chain.outputs}
    frozen = tuple(
        FrozenComponent(
            name=part.chain.name,
            local_batch_sizes=sizes,
            layers=tuple(FrozenLayer(name=one.name, forward_s=(case.frozen_s,)) for one in part.chain.layers),
            after=tuple(dict.fromkeys(makers[name] for name in part.prepares)),
        )
        for part in training.frozen
    )
    return Profile(backbones=backbones, frozen=frozen, p2p=Link(bandwidth_bytes_per_s=1e12))


def plan_of(training: Training, case: Case, profile: Profile) -> Plan:
    group = case.group or case.ranks
    settings = PlanSettings(
        batch=case.batch, devices=case.ranks, self_conditioning=case.self_conditioning, fill=case.fill,
        partial_batches=case.partial_batches, equal_replicas=case.equal_replicas,
    )  # fmt: skip
    plan = make_plan(
        profile, profile.backbones, settings, stages=case.stages, micro_batches=case.micro_batches, group=group
    )
    assert plan is not None
    return filled(plan, profile, settings) if case.fill else plan


@dataclass(frozen=True)
class Result:
    """What one rank, or one process, has after training."""

    losses: list[float]
    norms: list[float]
    """Norm of all gradients in each iteration."""
    parameters: dict[str, Any]
    """Arrays; of a rank those of its stages, of the first rank all of them, gathered."""
    evaluated: float
    """Loss of a batch with another number of samples."""


def run_rank(rank: int, store: str, case: Case) -> Result:
    """Run one rank of a case."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=case.ranks, timeout=TIMEOUT,
    )  # fmt: skip
    try:
        training, device = new_job(case), torch.device("cpu")
        profile = profile_of(training, case)
        if case.measured:
            profile = measured_profile(training, batch_of(case, 0), (1, case.batch), device, repeats=1)
        executor = PipelineExecutor(
            training, plan_of(training, case, profile), profile, device=device, recompute=case.recompute,
            release=rank > 0, timeout=TIMEOUT, autocast=autocast_of(case),
        )  # fmt: skip
        losses, norms = [], []
        for iteration in range(case.iterations):
            following = batch_of(case, iteration + 1) if iteration + 1 < case.iterations else None
            losses.append(executor.step(batch_of(case, iteration), following))
            norms.append(executor.gradient_norm())
            if (iteration + 1) % case.accumulate == 0:
                descend(executor.parameters())
        evaluated = executor.evaluate(ODD)
        executor.gather()
        parameters = executor.parameters() if rank else trained_of(training)
        return Result(losses, norms, arrays(parameters), evaluated)
    finally:
        dist.destroy_process_group()


def trained_of(training: Training) -> dict[str, nn.Parameter]:
    """Return all trainable parameters, named as the executor names them."""
    many = len(training.backbones) > 1
    return {
        f"{part.chain.name}.{name}" if many else name: one
        for part in training.backbones
        for name, one in trainable(part.chain.layers).items()
    }


def arrays(parameters: Mapping[str, nn.Parameter]) -> dict[str, Any]:
    return {name: one.detach().numpy() for name, one in parameters.items()}


@torch.no_grad()
def descend(parameters: Mapping[str, nn.Parameter]) -> None:
    """Take one step of SGD; a rank whose stages are locked has no parameters."""
    for one in parameters.values():
        if one.grad is not None:
            one.sub_(RATE * one.grad)
        one.grad = None


def run_alone(case: Case, micro_batches: int = 1) -> Result:
    """Train the same job in one process, a whole batch at once or in micro-batches whose gradients add up."""
    torch.set_num_threads(1)
    training = new_job(case)
    parameters = trained_of(training)
    losses, norms = [], []
    for iteration in range(case.iterations):
        total, rows = 0.0, case.batch // micro_batches
        for start in range(0, case.batch, rows):
            for found in losses_of(training, batch_of(case, iteration).part(start, start + rows), case):
                torch.autograd.backward(found)
                total += found.item()
        squares = [one.grad.square().sum().item() for one in parameters.values() if one.grad is not None]
        losses.append(total)
        norms.append(math.sqrt(math.fsum(squares)))
        if (iteration + 1) % case.accumulate == 0:
            descend(parameters)
    with torch.no_grad():
        evaluated = sum(one.item() for one in losses_of(training, ODD, case))
    return Result(losses, norms, arrays(parameters), evaluated)


def autocast_of(case: Case) -> torch.autocast | None:
    return torch.autocast("cpu", torch.bfloat16) if case.mixed else None


def losses_of(training: Training, batch: Samples, case: Case) -> Iterator[torch.Tensor]:
    """Yield the loss of each backbone."""
    encoded = encode(training, batch)
    for part in training.backbones:
        yield whole_loss(part, batch, encoded, autocast_of(case))


@torch.no_grad()
def encode(training: Training, batch: Samples) -> State:
    encoded: State = {}
    for part in training.frozen:
        given = part.feed(batch, encoded)
        encoded |= part.chain({name: given[name] for name in part.chain.inputs})
    return encoded


def whole_loss(part: TrainedPart, batch: Samples, encoded: State, autocast: torch.autocast | None) -> torch.Tensor:
    fed = part.feed(batch, encoded)
    state = {name: one for name, one in fed.state.items() if name in part.chain.inputs}
    if part.self_conditioned:
        state["estimate"] = torch.zeros_like(fed.state["sample"])
        if batch.second_pass:
            with torch.no_grad(), autocast or nullcontext():
                assert part.estimate is not None
                state["estimate"] = part.estimate(part.chain(state)["prediction"], fed.target)
    with autocast or nullcontext():
        prediction = part.chain(state)["prediction"]
    return part.loss(prediction, fed.target)
