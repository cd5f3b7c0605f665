"""Starts that hold the patches which do not change: found by the first step, skipped by blocks, whole at the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gpu_worker.engine import held
from services.gpu_worker.engine.engine import Engine
from services.gpu_worker.engine.events import Checkpointed, Finished, LatentCaptured
from services.gpu_worker.engine.held import CHANGED, HeldRegion
from services.gpu_worker.engine.row_start import make_row
from services.gpu_worker.engine.rows import FromCheckpoint, FromState, Region, Task, generator_of
from services.gpu_worker.engine.samplers import make_sampler
from services.gpu_worker.families import load_family
from services.gpu_worker.families.unet import UNetFamily
from shared.domain.types import Size
from shared.models import find_card
from tests.unit.gpu_worker.engine.conftest import drive, finished, solo, task

T, K, UNTIL = 20, 6, 17
"""With T = 20 a held patch skips a block once in a row."""


@pytest.fixture(scope="module")
def cutting(tiny_folder: Path) -> UNetFamily:
    """The tiny model on 16 patches of 4 × 4 cells, with regions."""
    card = replace(find_card(str(tiny_folder / "large")), regions=True)
    family = load_family(card, layout="patches", patch_px=16)
    assert isinstance(family, UNetFamily)
    assert family.region_side == 4
    return family


@pytest.fixture(scope="module")
def source(cutting: UNetFamily) -> dict[int, np.ndarray]:
    """The latents of a run, and under 0 its image."""
    events = drive(cutting, [(0, task("source", steps=T, capture_steps=tuple(range(1, T))))])
    latents: dict[int, np.ndarray] = {one.step: one.latent for one in events if isinstance(one, LatentCaptured)}
    return latents | {0: finished(events)["source"].pixels}


def started(source: dict[int, np.ndarray], name: str = "hit", region: bool = True, **changes: Any) -> Task:
    start = FromState(source[K], K, region=Region(source[0], UNTIL) if region else None)
    return task(name, prompt="two boats", steps=T, start=start, **changes)


def resumed(source: dict[int, np.ndarray], anew: np.ndarray, **changes: Any) -> Task:
    """A run that a lost one left after K steps, with the region that it found."""
    state = generator_of(0).get_state().numpy().tobytes()
    start = FromCheckpoint(source[K], K, state, anew=anew, region=Region(source[0], UNTIL))
    return task("resumed", prompt="two boats", steps=T, start=start, **changes)


def left_half() -> np.ndarray:
    mask = np.zeros((16, 16), bool)
    mask[:, :8] = True
    return mask


@pytest.mark.parametrize("name", ["ddim", "dpm++2m", "flow_match_euler"])
@settings(max_examples=15)
@given(steps=st.integers(1, 60), share=st.floats(0, 1), seed=st.integers(0, 9))
def test_the_noise_of_a_latent_brings_the_clean_one_back(name: str, steps: int, share: float, seed: int) -> None:
    config = {"num_train_timesteps": 1000, **({} if "flow" in name else {"clip_sample": False})}
    schedule = make_sampler(name, config).schedule(steps, (4, 4))
    done = int(share * (steps - 1))
    latent, clean = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    again = schedule.add_noise(clean, schedule.noise_of(latent, clean, done), done)
    torch.testing.assert_close(again, latent, rtol=1e-4, atol=1e-4)


def region(**changes: Any) -> HeldRegion:
    clean = torch.linspace(-1, 1, 64).reshape(1, 8, 8)
    plain = HeldRegion(clean, torch.zeros(1, 8, 8), torch.ones(8, 8, dtype=torch.bool), until=9, side=4, most=3)
    return replace(plain, **changes)


def test_a_patch_is_anew_where_the_prediction_differs() -> None:
    one = region()
    predicted = one.clean.clone()
    predicted[:, 4:, :4] += float((CHANGED * one.clean.var()) ** 0.5) * 1.01
    found = one.found(predicted)
    assert found is not None
    assert found.anew[4:, :4].all()
    assert int(found.anew.sum()) == 16
    assert found.reuses.tolist() == [3, 3, 0, 3]


def test_a_prediction_that_differs_nearly_everywhere_holds_nothing() -> None:
    one = region()
    assert one.found(one.clean + 9.0) is None
    nothing = one.found(one.clean)
    assert nothing is not None
    assert not nothing.anew.any()


def test_cells_outside_keep_to_the_line_from_the_latent_to_the_image_until_the_last_held_step(
    cutting: UNetFamily, source: dict[int, np.ndarray]
) -> None:
    anew = left_half()
    events = drive(cutting, [(0, resumed(source, anew, capture_steps=tuple(range(K + 1, T))))])
    found = {one.step: one.latent for one in events if isinstance(one, LatentCaptured)}
    with torch.inference_mode():
        clean = cutting.encode_picture(source[0])
        schedule = cutting.sampler.schedule(T, (16, 16))
        noise = schedule.noise_of(torch.from_numpy(source[K]), clean, K)
        known = {step: schedule.add_noise(clean, noise, step).numpy() for step in range(K, T)}
    for step in range(K + 1, UNTIL + 1):
        np.testing.assert_allclose(found[step][:, ~anew], known[step][:, ~anew], atol=1e-5)
        assert np.abs(found[step][:, anew] - known[step][:, anew]).max() > 1e-2
    assert np.abs(found[UNTIL + 1][:, ~anew] - known[UNTIL + 1][:, ~anew]).max() > 1e-3


def test_an_image_that_cannot_be_encoded_costs_the_saving_alone(
    cutting: UNetFamily, source: dict[int, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = solo(cutting, started(source, region=False))

    def full(pixels: np.ndarray) -> torch.Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(cutting, "encode_picture", full)
    done = solo(cutting, started(source))
    assert done.skipped == 0.0
    np.testing.assert_array_equal(done.latent, plain.latent)


def test_held_patches_skip_each_block_once_and_then_compute_it(
    cutting: UNetFamily, source: dict[int, np.ndarray]
) -> None:
    done = solo(cutting, resumed(source, left_half()))
    held_steps = UNTIL - K
    skipped = held_steps // 2 * 0.5  # half of the patches, in every second held step; the first computes all
    assert done.skipped == pytest.approx(skipped / (T - K))
    assert solo(cutting, started(source, region=False)).skipped == 0.0


def test_the_first_step_finds_the_region_and_the_run_stays_near_the_plain_one(
    cutting: UNetFamily, source: dict[int, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = solo(cutting, started(source, region=False))
    monkeypatch.setattr(held, "CHANGED", -1.0)  # all patches change
    whole = solo(cutting, started(source))
    assert whole.skipped == 0.0
    # the first step runs on patches, which rounds in another order
    np.testing.assert_allclose(whole.latent, plain.latent, atol=1e-4)
    monkeypatch.setattr(held, "CHANGED", np.inf)  # none does
    assert solo(cutting, started(source)).skipped > 0.3


def test_alone_as_in_company(cutting: UNetFamily, source: dict[int, np.ndarray]) -> None:
    one = resumed(source, left_half())
    others = [
        task("wide", size=Size(96, 64), steps=8, guidance=1.0, seed=3),
        started(source, "plain", region=False),
        replace(resumed(source, ~left_half()), id="right", guidance=1.0),
    ]
    alone = solo(cutting, one)
    together = finished(drive(cutting, [(0, one), *((at, other) for at, other in enumerate(others))]))
    np.testing.assert_allclose(together["resumed"].latent, alone.latent, atol=1e-4)
    assert together["resumed"].skipped == pytest.approx(alone.skipped)
    assert together["wide"].skipped == together["plain"].skipped == 0.0
    np.testing.assert_allclose(together["plain"].latent, solo(cutting, others[1]).latent, atol=1e-4)


def test_a_checkpoint_names_the_region_and_a_resumed_run_holds_it(
    cutting: UNetFamily, source: dict[int, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "CHANGED", 0.0)
    with torch.inference_mode():
        row = make_row(cutting, started(source))
        assert row.region is not None
        first = cutting.step([row])[0].clean - row.region.clean
        change = torch.nn.functional.avg_pool2d(first.square().mean(0)[None], 4) / row.region.clean.var()
    monkeypatch.setattr(held, "CHANGED", float(change.median()))
    one = replace(started(source), checkpoint_every=4, capture_steps=(14,))
    events = drive(cutting, [(0, one)])
    saved = {event.step: event for event in events if isinstance(event, Checkpointed)}
    lost = saved[10]
    assert lost.anew is not None
    assert 0 < lost.anew.sum() < lost.anew.size
    assert saved[18].anew is None  # the region has ended
    start = FromCheckpoint(
        lost.latent, 10, lost.generator_state, lost.noises, lost.previous, lost.anew, Region(source[0], UNTIL)
    )
    again = drive(cutting, [(0, replace(one, start=start))])
    before, after = (
        next(event.latent for event in each if isinstance(event, LatentCaptured)) for each in (events, again)
    )
    np.testing.assert_allclose(after[:, ~lost.anew], before[:, ~lost.anew], atol=1e-4)
    assert finished(again)["hit"].skipped > 0


def test_blocks_are_freed_once_the_region_ends(cutting: UNetFamily, source: dict[int, np.ndarray]) -> None:
    engine = Engine({"large": cutting})
    engine.submit(resumed(source, left_half()))
    kept = []
    while not engine.idle:
        engine.step()
        kept += [bool(row.blocks) for row in engine._running.values()]
    assert kept == [True] * (UNTIL - K) + [False] * (T - UNTIL - 1)


@pytest.mark.parametrize("why", ["groups", "invariant", "size", "fresh", "few steps", "ended"])
def test_a_start_that_may_hold_nothing_runs_whole(
    tiny_folder: Path, cutting: UNetFamily, source: dict[int, np.ndarray], why: str
) -> None:
    card, one = replace(find_card(str(tiny_folder / "large")), regions=True), started(source)
    start = one.start
    assert isinstance(start, FromState)
    assert start.region is not None
    family: Any = cutting
    match why:
        case "groups":
            family = load_family(card)
        case "invariant":
            family = load_family(card, layout="patches", patch_px=16, batch_invariant=4)
        case "size":
            one = replace(one, start=replace(start, region=Region(source[0][:32], UNTIL)))
        case "fresh":
            one = replace(one, start=replace(start, fresh_noise=0.5, noise_seed=3))
        case "few steps":
            one = replace(one, steps=10, start=replace(start, region=Region(source[0], 9)))
        case "ended":
            one = replace(one, start=replace(start, region=Region(source[0], K)))
    with torch.inference_mode():
        assert make_row(family, one).held is None
    done = solo(family, one)
    assert isinstance(done, Finished)
    assert done.skipped == 0.0


def test_a_cancelled_region_leaves_nothing(cutting: UNetFamily, source: dict[int, np.ndarray]) -> None:
    engine = Engine({"large": cutting})
    engine.submit(resumed(source, left_half()))
    engine.submit(started(source, "other", region=False))
    for _ in range(3):
        engine.step()
    engine.cancel("resumed")
    events = [event for _ in range(T) for event in engine.step()]
    (done,) = [event for event in events if isinstance(event, Finished)]
    assert done.id == "other"
    np.testing.assert_allclose(done.latent, solo(cutting, started(source, "other", region=False)).latent, atol=1e-4)
