"""The profile of a job on the ranks of this run: its layers, measured while all ranks are busy, and its links."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import TypeVar

import torch
import torch.distributed as dist

from services.trainer.pipeline.costs.profile import AllReduce, Backbone, FrozenComponent, Link, Profile
from services.trainer.pipeline.runtime.measuring import REPEATS, measured_backbone, measured_component
from services.trainer.pipeline.runtime.parts import FrozenPart, Rows, TrainedPart, Training
from services.trainer.pipeline.runtime.splitting.chain import State

SMALL_BYTES, LARGE_BYTES = 4 * 1024, 8 * 1024 * 1024
"""Messages whose times give latency and bandwidth."""
MESSAGES = 7
Part = TypeVar("Part", Backbone, FrozenComponent)


def measured_profile(
    training: Training,
    batch: Rows,
    sizes: Sequence[int],
    device: torch.device,
    *,
    autocast: torch.autocast | None = None,
    repeats: int = REPEATS,
    source: str = "",
) -> Profile:
    """Measure a job on this rank, or on all ranks of the default process group at the same time.

    batch: its first rows are what the layers run on; it has at least as many as the largest of the local batch
    `sizes`. Ranks measure the same layers at once: they share memory and processors as in training. Times are
    means over the ranks. All ranks get the same profile.
    """
    makers = {name: part.chain.name for part in training.frozen for name in part.chain.outputs}
    frozen = []
    for part in training.frozen:
        after = tuple(dict.fromkeys(makers[name] for name in part.prepares))
        given = partial(_frozen_inputs, training, batch, part)
        _together()
        frozen.append(_mean(measured_component(part.chain, given, sizes, after=after, repeats=repeats)))
    backbones = []
    for trained in training.backbones:
        given = partial(_trained_inputs, training, batch, trained)
        _together()
        backbones.append(_mean(measured_backbone(trained.chain, given, sizes, repeats=repeats, autocast=autocast)))
    p2p, all_reduce = measured_links(device)
    held = [
        Profile(source=source, backbones=tuple(backbones), frozen=tuple(frozen), p2p=p2p, all_reduce=tuple(all_reduce))
    ]
    if dist.is_initialized():
        dist.broadcast_object_list(held, device=device)  # equal to the last bit: all ranks must plan the same
    return held[0]


def _frozen_inputs(training: Training, batch: Rows, part: FrozenPart, count: int) -> State:
    rows, encoded = _encoded(training, batch, count) if part.prepares else (batch.part(0, count), State())
    given = part.feed(rows, encoded)
    return {name: given[name] for name in part.chain.inputs}


def _trained_inputs(training: Training, batch: Rows, part: TrainedPart, count: int) -> State:
    given = dict(part.feed(*_encoded(training, batch, count)).state)
    if part.self_conditioned:
        given["estimate"] = torch.zeros_like(given["sample"])
    return {name: given[name] for name in part.chain.inputs}


@torch.no_grad()
def _encoded(training: Training, batch: Rows, count: int) -> tuple[Rows, State]:
    """Return rows of a batch and the frozen part's outputs for them."""
    rows, found = batch.part(0, count), State()
    for part in training.frozen:
        given = part.feed(rows, found)
        found |= part.chain({name: given[name] for name in part.chain.inputs})
    return rows, found


def _together() -> None:
    if dist.is_initialized():
        dist.barrier()


def _mean(part: Part) -> Part:
    """Return a measured part with the mean times of all ranks."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return part
    fields = ("forward_s", "backward_s") if isinstance(part, Backbone) else ("forward_s",)
    times = torch.tensor([[getattr(layer, name) for name in fields] for layer in part.layers], dtype=torch.float64)
    summed = times.to(torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu"))
    dist.all_reduce(summed)
    means = (summed / dist.get_world_size()).cpu().tolist()
    layers = tuple(
        layer.model_copy(update={name: tuple(values) for name, values in zip(fields, mean, strict=True)})
        for layer, mean in zip(part.layers, means, strict=True)
    )
    return part.model_copy(update={"layers": layers})


def measured_links(device: torch.device) -> tuple[Link, list[AllReduce]]:
    """Measure point to point between neighbours, and all-reduce over all ranks; no rank alone has a link.

    Latency and bandwidth follow from the median times of a small and a large message. The slowest pair counts.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return Link(bandwidth_bytes_per_s=1e12), []
    world, rank = dist.get_world_size(), dist.get_rank()
    times = []
    for low in range(world - 1):
        pair = [_seconds(_round_trip, size, low, device) / 2 for size in (SMALL_BYTES, LARGE_BYTES)]
        times.append(pair if rank in (low, low + 1) else [0.0, 0.0])
    slowest = torch.tensor(times, device=device).amax(dim=0)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    summed = torch.tensor(
        [_seconds(_all_reduce, size, 0, device) for size in (SMALL_BYTES, LARGE_BYTES)], device=device
    )
    dist.all_reduce(summed, op=dist.ReduceOp.MAX)
    p2p, all_reduce = _fitted(*slowest.tolist()), _fitted(*summed.tolist())
    return p2p, [AllReduce(devices=world, **all_reduce.model_dump())]


def _seconds(exchange: Callable[[torch.Tensor, int], None], size: int, low: int, device: torch.device) -> float:
    """Return the median time of an exchange; the first one does not count."""
    buffer, taken = torch.zeros(size // 4, device=device), []
    for _ in range(1 + MESSAGES):
        dist.barrier()
        begun = time.perf_counter()
        exchange(buffer, low)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - begun)
    return median(taken[1:])


def _round_trip(buffer: torch.Tensor, low: int) -> None:
    rank = dist.get_rank()
    if rank == low:
        dist.send(buffer, low + 1)
        dist.recv(buffer, low + 1)
    elif rank == low + 1:
        dist.recv(buffer, low)
        dist.send(buffer, low)


def _all_reduce(buffer: torch.Tensor, low: int) -> None:
    del low
    dist.all_reduce(buffer)


def _fitted(small_s: float, large_s: float) -> Link:
    bandwidth = (LARGE_BYTES - SMALL_BYTES) / max(large_s - small_s, 1e-9)
    return Link(latency_s=max(small_s - SMALL_BYTES / bandwidth, 0.0), bandwidth_bytes_per_s=bandwidth)
