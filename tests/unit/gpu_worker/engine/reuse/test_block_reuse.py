"""Reuse between steps through the engine: whole images and patches, rows that join, leave, resume and are cancelled."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
import torch

from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Checkpointed, Finished
from services.gpu_worker.engine.reuse import block_reuse
from services.gpu_worker.engine.rows import FromCheckpoint, FromState, Row, Task
from services.gpu_worker.engine.scheduler import Decision
from services.gpu_worker.engine.schedulers import ByPriority
from services.gpu_worker.families import load_family
from services.gpu_worker.families.unet import UNetFamily
from shared.domain.types import Size
from shared.models import find_card
from tests.unit.gpu_worker.engine.conftest import STEPS, drive, finished, solo, task
from tests.unit.gpu_worker.engine.reuse.conftest import always, never, odd_patches

SQUARE, WIDE = Size(64, 64), Size(96, 64)


def batch() -> list[Task]:
    """Hits and misses of two sizes, with and without guidance, one of which first runs without its prompt."""
    state = np.random.default_rng(3).standard_normal((4, 16, 16)).astype(np.float32)
    return [
        task("miss", size=SQUARE, steps=6),
        task("wide", size=WIDE, steps=6, guidance=1.0, prompt="two boats", seed=2),
        task("hit", size=SQUARE, steps=6, start=FromState(state, 3), sampler="dpm++2m"),
        task("later", size=WIDE, steps=6, prompted_from=2, seed=9),
    ]


def latents(family: Any, tasks: list[tuple[int, Task]]) -> dict[str, np.ndarray]:
    return {name: done.latent for name, done in finished(drive(family, tasks)).items()}


def test_a_forest_that_never_reuses_changes_no_bit(reusing: UNetFamily) -> None:
    tasks = [(at, one) for at, one in enumerate(batch())]
    plain = latents(reusing, tasks)
    reuse = reusing.reuse_blocks(never())
    if reusing._patched is not None:  # one size alone is cut as well, so its reference must be
        reuse.policy = None
        plain = latents(reusing, tasks)
        reuse.policy = never()
    found = latents(reusing, tasks)
    for name, latent in plain.items():
        np.testing.assert_array_equal(found[name], latent)


def test_a_block_that_is_reused_gives_the_last_steps_output(reusing: UNetFamily) -> None:
    runs: list[int] = []
    mid: Any = reusing.denoiser.mid_block
    hook = mid.resnets[0].register_forward_pre_hook(lambda *_: runs.append(1))
    policy = always()
    seen: dict[int, list[torch.Tensor]] = {}
    reuse = reusing.reuse_blocks(policy)
    reuse.observe = lambda block, ids, times, inputs, outputs: seen.setdefault(block, []).append(_first(outputs))
    done = finished(drive(reusing, [(0, task())]))["a"]
    reuse.observe = None
    hook.remove()
    assert len(runs) == 1  # from the second step on, no block runs
    assert done.skipped == pytest.approx((STEPS - 1) / STEPS)
    for outputs in seen.values():
        assert len(outputs) == STEPS
        assert all(torch.equal(outputs[0], later) for later in outputs[1:])
    assert reuse.counts.seen > 0


def _first(tree: Any) -> torch.Tensor:
    return tree if isinstance(tree, torch.Tensor) else _first(tree[0])


def test_at_most_n_reuses_in_a_row(reusing: UNetFamily) -> None:
    policy = always(most=2)
    reusing.reuse_blocks(policy)
    drive(reusing, [(0, task(guidance=1.0))])
    first = [in_a_row.max() for block, in_a_row, _ in policy.asked if block == 0]
    assert first == [0, 1, 2, 0, 1, 2, 0, 1, 2]


def test_a_run_of_fewer_steps_than_the_forest_was_judged_at_computes_all_blocks(reusing: UNetFamily) -> None:
    short, long = replace(task(guidance=1.0), id="short", steps=STEPS - 1), task(guidance=1.0)
    reusing.reuse_blocks(None)
    plain = latents(reusing, [(0, short)])
    reusing.reuse_blocks(always(), least_steps=STEPS)
    alone, both = (finished(drive(reusing, [(0, each) for each in some])) for some in ([short], [short, long]))
    for found in (alone, both):
        assert found["short"].skipped == 0.0
        np.testing.assert_allclose(found["short"].latent, plain["short"], atol=1e-5)
    np.testing.assert_array_equal(alone["short"].latent, plain["short"])  # it is not cut either
    assert both["a"].skipped == pytest.approx((STEPS - 1) / STEPS)


def test_equal_inputs_have_no_change(reusing: UNetFamily) -> None:
    policy = always()
    reusing.reuse_blocks(policy)
    drive(reusing, [(0, task(guidance=1.0))])
    # where all blocks before are reused, only the skip from the first convolution moves
    moved = {block: changes.max() for block, _, changes in policy.asked}
    assert moved[1] == 0.0 < moved[0]


def test_an_image_that_is_cut_another_way_is_computed(by_layout: dict[str, UNetFamily]) -> None:
    patched, policy = by_layout["patches"], always()
    patched.reuse_blocks(policy)
    engine = Engine({"large": patched})
    engine.submit(task(guidance=1.0))
    engine.step()
    model: Any = patched._patched
    model.cut_from = math.inf  # as layout=auto changes the layout between two steps
    engine.step()
    assert not policy.asked
    engine.step()
    assert {len(in_a_row) for _, in_a_row, _ in policy.asked} == {1}
    patched.reuse_blocks(None)


def test_an_image_of_one_patch_that_ran_whole_is_computed(tiny_folder: Path) -> None:
    """As layout=auto runs it: whole and alone in the first step, and as a patch beside a larger image in the second."""
    patched: Any = load_family(find_card(str(tiny_folder / "large")), layout="patches", patch_px=SQUARE.width)
    policy = odd_patches()
    patched.reuse_blocks(policy)
    patched._patched.cut_from = math.inf
    engine = Engine({"large": patched})
    engine.submit(task("one", size=SQUARE, guidance=1.0))
    engine.step()
    engine.submit(task("two", size=Size(128, 64), guidance=1.0))
    with structlog.testing.capture_logs() as said:
        engine.step()
    assert not said
    assert not policy.asked
    engine.step()
    assert {len(in_a_row) for _, in_a_row, _ in policy.asked} == {3}


def test_some_patches_are_computed_beside_reused_ones(by_layout: dict[str, UNetFamily]) -> None:
    """With every other patch of every block reused, the run stays near the run that computes all."""
    patched = by_layout["patches"]
    plain = solo(patched, task(steps=20)).latent
    reuse = patched.reuse_blocks(odd_patches())
    before = reuse.counts.reused
    found = solo(patched, task(steps=20)).latent
    patched.reuse_blocks(None)
    assert reuse.counts.reused > before
    assert np.isfinite(found).all()
    assert np.abs(found - plain).max() > 0
    assert np.square(found - plain).mean() < 0.05 * np.square(plain).mean()


def test_rows_that_join_leave_and_are_cancelled_keep_the_others_unchanged(reusing: UNetFamily) -> None:
    reusing.reuse_blocks(always(most=3))
    alone = solo(reusing, task("stays", steps=14)).latent
    engine = Engine({"large": reusing}, max_rows=8)
    engine.submit(task("stays", steps=14))
    done: dict[str, Finished] = {}
    for at in range(14):
        if at == 2:
            for one in batch():
                engine.submit(one)
        if at == 5:
            engine.cancel("miss")
            engine.cancel("wide")
        done |= finished(engine.step())
    assert set(done) == {"stays", "hit", "later"}
    np.testing.assert_allclose(done["stays"].latent, alone, atol=1e-4)


class Scripted(ByPriority):
    """Sets the first row aside for the second one before its fourth step, and takes it back when that one has left."""

    def decide(self, waiting: Sequence[Task], running: Sequence[Row], *rest: Any) -> Decision:
        *_, aside = rest
        if waiting and not running:
            return Decision(join=(waiting[0].id,))
        if waiting and running[0].done == 3:
            return Decision(join=(waiting[0].id,), aside=(running[0].task.id,))
        return Decision(resume=tuple(row.task.id for row in aside)) if not running else Decision()


def test_a_row_that_was_set_aside_goes_on_with_its_cache(reusing: UNetFamily) -> None:
    reusing.reuse_blocks(always(most=2))
    tasks = [task("patient"), task("urgent", size=WIDE, prompt="two boats", seed=2)]
    alone = {one.id: solo(reusing, one).latent for one in tasks}
    engine = Engine({"large": reusing}, max_rows=8, scheduler=Scripted())
    for one in tasks:
        engine.submit(one)
    done: dict[str, Finished] = {}
    order, kept = [], None
    for _ in range(2 * STEPS):
        found = finished(engine.step())
        order += [*found]
        done |= found
        if "patient" in engine._aside:
            blocks = engine._aside["patient"].blocks
            kept = kept or {name: dict(cache.blocks) for name, cache in blocks.items()}
            assert kept == {name: dict(cache.blocks) for name, cache in blocks.items()}
    assert order == ["urgent", "patient"]
    assert kept
    for name, latent in alone.items():
        np.testing.assert_array_equal(done[name].latent, latent)  # each ran alone, and reused as it does alone


def test_a_resumed_row_begins_with_an_empty_cache(reusing: UNetFamily) -> None:
    policy = always()
    reusing.reuse_blocks(policy)
    events = drive(reusing, [(0, task(checkpoint_every=4))])
    saved = next(event for event in events if isinstance(event, Checkpointed))
    policy.asked.clear()
    start = FromCheckpoint(saved.latent, saved.step, saved.generator_state)
    resumed = solo(reusing, task(start=start))
    # the first step of the resumed run asks nothing, and computes all blocks
    assert len([block for block, _, _ in policy.asked if block == 0]) == STEPS - saved.step - 1
    assert not np.array_equal(resumed.latent, finished(events)["a"].latent)
    np.testing.assert_array_equal(resumed.latent, solo(reusing, task(start=start)).latent)


def test_cached_tensors_leave_with_their_rows(reusing: UNetFamily) -> None:
    reusing.reuse_blocks(always(most=1))
    kept: list[weakref.ref[torch.Tensor]] = []
    engine = Engine({"large": reusing}, max_rows=8)
    for one in batch():
        engine.submit(one)
    for _ in range(2):
        engine.step()
    for row in engine._running.values():
        kept += [weakref.ref(_first(saved.outputs)) for cache in row.blocks.values() for saved in cache.blocks.values()]
        del row
    assert len(kept) > 10
    assert all(ref() is not None for ref in kept)
    for name in ("miss", "hit", "later"):
        engine.cancel(name)
    engine.step()
    engine.step()  # the tensors that `wide` shared with them are replaced
    engine.cancel("wide")
    gc.disable()  # freed without the collector's help
    try:
        engine.step()
        assert engine.idle
        assert not [ref for ref in kept if ref() is not None]
    finally:
        gc.enable()


def test_a_row_that_fails_does_not_spoil_the_caches(reusing: UNetFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch fails in the middle of the denoiser, and runs again without reuse: all blocks are computed."""
    reusing.reuse_blocks(always(most=2))
    engine = Engine({"large": reusing}, max_rows=8)
    for one in batch():
        engine.submit(one)
    engine.step()
    mid = reusing.denoiser.mid_block.resnets[0]
    broken = mid.register_forward_pre_hook(_fail_once())
    done = [event for _ in range(STEPS) for event in engine.step()]
    broken.remove()
    assert engine.idle
    assert set(finished(done)) == {one.id for one in batch()}


def test_a_failing_cache_costs_a_pass_and_not_the_image(
    by_layout: dict[str, UNetFamily], monkeypatch: pytest.MonkeyPatch
) -> None:
    family = by_layout["groups"]
    plain = solo(family, task())

    def full(*given: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(block_reuse, "gather", full)
    family.reuse_blocks(always())
    with structlog.testing.capture_logs() as said:
        found = solo(family, task())
    family.reuse_blocks(None)
    np.testing.assert_array_equal(found.latent, plain.latent)
    assert [(each["event"], each["images"]) for each in said] == [("a pass ran again without reuse", 1)] * STEPS


def _fail_once() -> Any:
    failed: list[bool] = []

    def hook(module: Any, given: Any) -> None:
        if not failed:
            failed.append(True)
            raise RuntimeError("out of memory")

    return hook
