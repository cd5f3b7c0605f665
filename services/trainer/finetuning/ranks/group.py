"""The process group of a run: made by torchrun's variables, with a timeout that finds a rank that hangs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from shared.domain.errors import AfterimageError, ConfigurationError, UnavailableError
from shared.models.devices import chosen_device

T = TypeVar("T")


class RankLostError(UnavailableError):
    """Another rank of the training run ended or did not answer in time.

    Start the run again: it goes on from the last checkpoint. If the rank was only slow, raise `ranks.timeout_s`.
    """


class OtherRankError(ConfigurationError):
    """Another rank of the training run found an error, and prints it."""


@dataclass(frozen=True)
class Place:
    """This process among the ranks of a run."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0

    @property
    def leads(self) -> bool:
        """Whether this rank prints, writes the run's files and generates samples."""
        return self.rank == 0


def place_of(environment: Mapping[str, str]) -> Place:
    """Return the place that torchrun's variables name; without them, the only rank.

    Raises ConfigurationError for variables that are no numbers.
    """
    try:
        rank, world, local = (
            int(environment.get(name, default))
            for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))
        )
    except ValueError as error:
        raise ConfigurationError(f"RANK, WORLD_SIZE and LOCAL_RANK must be whole numbers: {error}") from None
    return Place(rank, world, local)


def device_of(name: str, place: Place) -> torch.device:
    """Return the device of a rank: the GPU of its local rank, or the CPU."""
    chosen = chosen_device(name)
    return torch.device(chosen_device(f"cuda:{place.local_rank}") if chosen == "cuda" else chosen)


@contextmanager
def joined(place: Place, device: torch.device, timeout_s: float) -> Iterator[None]:
    """Join the process group while the block runs, if there are several ranks.

    A collective call that lasts longer than `timeout_s` fails on gloo, and ends the process on NCCL. Failures of the
    group become RankLostError.

    End the process with `os._exit`, while the group and DDP still exist: after a failure the group's threads wait for
    the lost rank, and after a success torch's destructor may wait, with the GIL, for a thread that waits for the GIL
    (seen with gloo in torch 2.13).
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if place.world == 1:
        yield
        return
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if os.environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        limit = timedelta(seconds=timeout_s)
        store, rank, world = next(dist.rendezvous("env://", timeout=limit))  # type: ignore[attr-defined]
        # torchrun keeps its store when it starts the ranks again: without a prefix they would read the addresses of
        # the ranks before
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"restart-{attempt}", store)  # type: ignore[attr-defined]
        dist.init_process_group(backend, timeout=limit, store=store, rank=rank, world_size=world)
        yield
    except (dist.DistBackendError, dist.DistNetworkError, dist.DistStoreError) as error:
        raise _lost(place, timeout_s, error) from error
    except RuntimeError as error:
        if not _of_gloo(error):
            raise
        raise _lost(place, timeout_s, error) from error


def from_first(place: Place, value: T, *, patience_s: float = 0.0) -> T:
    """Return the first rank's value on every rank; with patience, wait longer for it than the group's timeout."""
    if place.world == 1:
        return value
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=patience_s)) if patience_s else None
    held: list[Any] = [value]
    dist.broadcast_object_list(held, src=0, group=group, device=torch.device("cpu"))
    found: T = held[0]
    return found


def made_by_first(place: Place, make: Callable[[], T], *, patience_s: float = 0.0) -> T:
    """Return on every rank what `make` returns on the first one, which alone calls it.

    Where it fails, the first rank raises its error, and the others raise OtherRankError. patience_s: see `from_first`.
    """
    held: list[T] = []
    wrong: Exception | None = None
    if place.leads:
        try:
            held.append(make())
        except (AfterimageError, OSError) as error:
            wrong = error
    found, said = from_first(place, (held, None if wrong is None else str(wrong)), patience_s=patience_s)
    if wrong is not None:
        raise wrong
    if said is not None:
        raise OtherRankError(said)
    return found[0]


def made_by_all(place: Place, make: Callable[[], T]) -> list[T]:
    """Return what `make` returns on each rank, in their order, on every rank.

    Where it fails, the first rank that it fails on raises its error, and the others raise OtherRankError.
    """
    held: list[T] = []
    wrong: AfterimageError | None = None
    try:
        held.append(make())
    except AfterimageError as error:
        wrong = error
    found = gathered(place, (held, None if wrong is None else str(wrong)))
    failed = [(rank, said) for rank, (_, said) in enumerate(found) if said is not None]
    if wrong is not None and failed[0][0] == place.rank:
        raise wrong
    if failed:
        raise OtherRankError(failed[0][1])
    return [one for values, _ in found for one in values]


def gathered(place: Place, value: T) -> list[T]:
    """Return the values of all ranks, in their order, on every rank."""
    if place.world == 1:
        return [value]
    found: list[Any] = [None] * place.world
    dist.all_gather_object(found, value)
    return found


def _of_gloo(error: RuntimeError) -> bool:
    """Whether gloo raised an error: it has no class of its own."""
    return any(word in str(error) for word in ("gloo", "Gloo", "Connection closed by peer", "Timed out waiting"))


def _lost(place: Place, timeout_s: float, error: Exception) -> RankLostError:
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return RankLostError(
        f"rank {place.rank}: another rank ended, or did not answer within ranks.timeout_s = {timeout_s:g} s; the run "
        f"goes on from its last checkpoint when it is started again ({said[:200]})"
    )
