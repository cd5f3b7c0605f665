"""Reuse between steps: before each block, the patches whose input hardly changed take the block's last output
(PatchedServe §5)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from services.gpu_worker.engine.layout import Forward
from services.gpu_worker.engine.patches.batch import Current, PatchBatch
from services.gpu_worker.engine.patches.packed_batch import PackedBatch
from services.gpu_worker.engine.reuse.block_batch import BlockBatch
from services.gpu_worker.engine.reuse.block_cache import (
    Ints,
    PassCache,
    PatchId,
    Places,
    Saved,
    Tree,
    changes,
    gather,
    replace_rows,
    select,
)
from services.gpu_worker.engine.rows import PromptEncoding, Row
from shared.runtime.telemetry import log

BLOCKS = ("down_blocks", "mid_block", "up_blocks", "transformer_blocks", "single_transformer_blocks")
"""Attributes of diffusers' denoisers with their blocks, in the order in which these run."""
INPUTS = ("hidden_states", "res_hidden_states_tuple")
JOINT_INPUTS = ("hidden_states", "encoder_hidden_states")
"""Arguments of a block that are compared. Blocks that join text and image change the text as well."""
JOINT = ("JointTransformerBlock", "FluxTransformerBlock", "FluxSingleTransformerBlock")
SHARED = ("image_rotary_emb",)
"""Arguments without a row per image."""


class Policy(Protocol):
    """The decision of shared.models.step_reuse.StepReuse."""

    def reused(self, block: int, timesteps: npt.ArrayLike, in_a_row: Ints, changes: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return (P,): which patches reuse the block's output."""
        ...


Observe = Callable[[int, Sequence[PatchId], npt.NDArray[Any], Tree, Tree], None]
"""(block, ids, timesteps, inputs, outputs) after a block ran, for profiles."""


@dataclass(eq=False)
class _Call:
    """One forward pass of the denoiser; per patch of the batch its id, timestep and the steps of its row before."""

    ids: tuple[PatchId, ...]
    caches: list[PassCache]
    timesteps: npt.NDArray[Any]
    done: Ints
    rows: Sequence[Row]
    """Row of each patch."""
    may_reuse: npt.NDArray[Any]
    """(P,): which patches the policy decides about."""
    most: Ints
    """(P,): reuses in a row that are allowed whatever the policy decides: patches that the next step replaces."""
    shares: list[npt.NDArray[Any]]
    """Per block, which patches reused its output."""


@dataclass(eq=False)
class Counts:
    """Patches that came to a block, and those that reused its output: the savings of Fig. 15."""

    seen: int = 0
    reused: int = 0

    @property
    def share(self) -> float:
        return self.reused / self.seen if self.seen else 0.0


@dataclass(eq=False)
class BlockReuse:
    """The blocks of a loaded denoiser, wrapped so that `policy` decides what they compute. They do not run for held
    patches of a region, in most steps (engine/held.py).

    With neither, and outside of `during`, the blocks run as they are. A row whose last step kept nothing computes
    all blocks: its first step, and any step after another cut of its image. Packed images are reused as a whole.
    """

    denoiser: nn.Module
    current: Current = field(default_factory=Current)
    """The batch of patches that runs; without one the denoiser runs whole images."""
    policy: Policy | None = None
    least_steps: int = 0
    """T from which the policy decides; a run of fewer steps computes all blocks."""
    observe: Observe | None = None
    counts: Counts = field(default_factory=Counts)
    _call: _Call | None = None

    def __post_init__(self) -> None:
        for number, block in enumerate(blocks_of(self.denoiser)):
            names = list(inspect.signature(block.forward).parameters)
            compared = JOINT_INPUTS if type(block).__name__ in JOINT else INPUTS
            block.forward = partial(self._run, number, block.forward, names, compared)

    def during(self, forward: Forward) -> Forward:
        """Return the denoiser's forward with reuse; its rows, one per image or patch, name what they may reuse.

        A pass that fails drops what its rows keep, and runs again without reuse.
        """

        def run(latents: Tensor, timesteps: Tensor, encodings: Sequence[PromptEncoding], rows: Sequence[Row]) -> Tensor:
            if not any(self._may_reuse(row) or row.region is not None for row in rows):
                for row in rows:  # frees what a region kept
                    row.blocks.clear()
                return forward(latents, timesteps, encodings, rows)
            batch = self.current.batch
            squares = [0] * len(rows) if batch is None else batch.squares
            try:
                may_reuse = np.array([self._may_reuse(row) for row in rows])
                self._call = call = _call_of(latents, timesteps, encodings, rows, squares, may_reuse)
                output = forward(latents, timesteps, encodings, rows)
                _count(call)
                return output
            except Exception as error:
                images = len({id(row) for row in rows})
                log("gpu_worker").warning("a pass ran again without reuse", images=images, error=repr(error))
            finally:
                self._call = None
            for row in rows:  # frees what may have filled the memory
                row.blocks.clear()
            return forward(latents, timesteps, encodings, rows)

        return run

    def _may_reuse(self, row: Row) -> bool:
        return self.policy is not None and row.task.steps >= self.least_steps

    def _run(self, number: int, whole: Callable[..., Tree], names: Sequence[str], compared: Sequence[str],
             *given: Any, **named: Any) -> Tree:  # fmt: skip
        """Run one block: all patches, some of them, or none."""
        call = self._call
        if call is None:
            return whole(*given, **named)
        arguments = dict(zip(names, given, strict=False)) | named
        inputs = tuple(each for name in compared for each in _tensors(arguments.get(name)))
        known, places = gather((one.blocks.get(number) for one in call.caches), call.ids)
        masked = np.zeros(len(call.ids), dtype=bool)
        if known is not None:
            places = places[known.steps[places] == call.done[places] - 1]
            masked[places] = self._decided(number, call, known, places, inputs)
        saved = self._computed(whole, arguments, inputs, call, known, masked)
        for cache in call.caches:
            cache.blocks[number] = saved
        call.shares.append(masked)
        self.counts.seen += len(masked)
        self.counts.reused += int(masked.sum())
        if self.observe is not None:
            self.observe(number, call.ids, call.timesteps, inputs, saved.outputs)
        return saved.outputs

    def _decided(self, number: int, call: _Call, known: Saved, places: Ints, inputs: Tree) -> npt.NDArray[Any]:
        """Return which of the Common patches at `places` reuse the block's output."""
        held = known.in_a_row[places] < call.most[places]
        if self.policy is None or not call.may_reuse[places].any():
            return held
        before, ids = known.inputs, call.ids
        if len(places) < len(ids):
            at = Places(ids, places)
            inputs, before, ids = select(inputs, at), select(before, at), tuple(ids[place] for place in places)
        moved = changes(inputs, before, ids)
        decided = self.policy.reused(number, call.timesteps[places], known.in_a_row[places], moved)
        return held | (decided & call.may_reuse[places])

    def _computed(
        self, whole: Callable[..., Tree], arguments: dict[str, Any], inputs: Tree, call: _Call,
        known: Saved | None, masked: npt.NDArray[Any],
    ) -> Saved:  # fmt: skip
        """Run the block for the patches that are not masked; return what to keep, with the outputs of all patches."""
        if known is None or not masked.any():
            outputs, inner = self._of_block(partial(whole, **arguments), None, ())
            return Saved(call.ids, inputs, outputs, inner, np.zeros_like(call.done), call.done)
        in_a_row = np.where(masked, known.in_a_row + 1, 0)
        if masked.all():
            return Saved(call.ids, known.inputs, known.outputs, known.inner, in_a_row, call.done)
        computed = np.flatnonzero(~masked)
        at = Places(call.ids, computed)
        if isinstance(batch := self.current.batch, PackedBatch):
            part, some = batch.of_requests(computed, arguments)
            with _seen_as(self.current, part):
                outputs, inner = whole(**some), ()
        else:
            some = {name: value if name in SHARED else select(value, at) for name, value in arguments.items()}
            outputs, inner = self._of_block(partial(whole, **some), computed, known.inner)
        return Saved(
            call.ids,
            replace_rows(known.inputs, at, select(inputs, at)),
            replace_rows(known.outputs, at, outputs),
            inner,
            in_a_row,
            call.done,
        )

    def _of_block(self, run: Callable[[], Tree], computed: Ints | None, inner: Tree) -> tuple[Tree, Tree]:
        """Return a block's outputs, and what its operators read of other patches."""
        if (batch := self.current.batch) is None or isinstance(batch, PackedBatch):
            return run(), ()
        seen = BlockBatch(batch, computed, inner)
        with _seen_as(self.current, seen):
            return run(), seen.recorded


@contextmanager
def _seen_as(current: Current, seen: PatchBatch) -> Iterator[None]:
    batch, current.batch = current.batch, seen
    try:
        yield
    finally:
        current.batch = batch


def blocks_of(denoiser: nn.Module) -> list[nn.Module]:
    """Return a denoiser's blocks in the order in which they run. Raises ValueError if it has none that are known."""
    found: list[nn.Module] = []
    for name in BLOCKS:
        part = getattr(denoiser, name, None)
        found += [] if part is None else part if isinstance(part, nn.ModuleList) else [part]
    if not found:
        raise ValueError(f"{type(denoiser).__name__} has none of {', '.join(BLOCKS)}")
    return found


def _call_of(
    latents: Tensor,
    timesteps: Tensor,
    encodings: Sequence[PromptEncoding],
    rows: Sequence[Row],
    squares: Sequence[int],
    may_reuse: npt.NDArray[Any],
) -> _Call:
    """Find the cache of each pass on its row; caches of passes that no longer run are dropped. squares: of each row."""
    shape, numbers = tuple(latents.shape[1:]), dict[tuple[int, int], int]()
    ids, caches = [], dict[tuple[int, int], PassCache]()
    for row, encoding, count in zip(rows, encodings, squares, strict=True):
        key = id(row), id(encoding)
        if key not in caches:
            caches[key] = row.blocks.get(id(encoding)) or PassCache()
        number = numbers[key] = numbers.get(key, -1) + 1
        ids.append((caches[key].serial, number, count, shape))
    for row in {id(row): row for row in rows}.values():
        row.blocks = {encoding: cache for (owner, encoding), cache in caches.items() if owner == id(row)}
    done = np.array([row.done for row in rows], dtype=np.int64)
    most = _held_most(rows, [number for _, number, *_ in ids]) if any(squares) else np.zeros_like(done)
    times = timesteps.float().cpu().numpy()
    return _Call(tuple(ids), list(caches.values()), times, done, rows, may_reuse, most, [])


def _held_most(rows: Sequence[Row], numbers: Sequence[int]) -> Ints:
    """Return (P,), for held patches the reuses in a row that their region allows, 0 for all others. numbers: of each
    patch in its image."""
    held = {id(row): row.region.reuses for row in rows if row.region is not None}
    found = [held[id(row)][number] if id(row) in held else 0 for row, number in zip(rows, numbers, strict=True)]
    return np.array(found, dtype=np.int64)


def _count(call: _Call) -> None:
    """Add to each row the share of this step's blocks and patches that it reused."""
    if not call.shares:
        return
    shares, passes = np.mean(call.shares, axis=0), dict[int, list[float]]()
    for row, share in zip(call.rows, shares.tolist(), strict=True):
        passes.setdefault(id(row), []).append(share)
    for row in {id(row): row for row in call.rows}.values():
        row.skipped += float(np.mean(passes[id(row)]))


def _tensors(value: Any) -> tuple[Tensor, ...]:
    if isinstance(value, Tensor):
        return (value,)
    return tuple(value) if isinstance(value, tuple) else ()
