"""Requests of different sizes in one batch of patches: equal to runs of their own, through the engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gpu_worker.engine.patches import patched_model
from services.gpu_worker.engine.patches.layout import Layout, Shape, layout_of
from services.gpu_worker.engine.rows import FromState, Task
from services.gpu_worker.families import load_family
from services.gpu_worker.families.unet import UNetFamily
from services.gpu_worker.models.measuring import load_warm
from shared.domain.errors import ModelError
from shared.domain.types import Size
from shared.models import find_card
from shared.runtime.settings import Settings
from tests.unit.gpu_worker.conftest import LoadFamily
from tests.unit.gpu_worker.engine.conftest import drive, finished, resumed, solo, task

SIZES = [Size(64, 64), Size(96, 64), Size(64, 96), Size(96, 96)]


@pytest.fixture(scope="module")
def patched(tiny_folder: Path) -> UNetFamily:
    """The tiny model with patches of 16 pixels: half of the smallest size of its card."""
    found = load_family(find_card(str(tiny_folder / "large")), layout="patches")
    assert isinstance(found, UNetFamily)
    return found


@contextmanager
def forwards(family: Any) -> Iterator[list[tuple[int, ...]]]:
    """The shapes of all forward passes of the denoiser."""
    seen: list[tuple[int, ...]] = []
    hook = family.denoiser.register_forward_pre_hook(lambda _, given: seen.append(tuple(given[0].shape)))
    yield seen
    hook.remove()


def state(size: Size, seed: int) -> np.ndarray:
    latent = np.random.default_rng(seed).standard_normal((4, size.height // 4, size.width // 4))
    return latent.astype(np.float32)


MIXED = [
    task("square", size=Size(64, 64), guidance=2.5),
    task("wide", size=Size(96, 64), guidance=1.0, prompt="two boats at night"),  # no unconditional pass
    task("tall", size=Size(64, 96), guidance=7.0, negative_prompt="blurry", sampler="dpm++2m"),
    task("hit", size=Size(96, 96), guidance=4.0, start=FromState(state(Size(96, 96), 3), 6)),
    task("later", size=Size(32, 48), steps=7, prompted_from=2, seed=9),
]


def test_a_mix_of_sizes_is_one_forward_pass_and_equals_runs_of_their_own(load: LoadFamily, patched: UNetFamily) -> None:
    with forwards(patched) as seen:
        together = finished(drive(patched, zip([0, 0, 1, 2, 2], MIXED, strict=True)))
    # square twice (guidance) and wide once: 2 · 16 + 24 patches of 4 × 4 cells
    assert seen[0] == (2 * 16 + 24, 4, 4, 4)
    assert all(shape[-2:] == (4, 4) for shape in seen[:10])
    for one in MIXED:
        alone = solo(load(0), one)
        np.testing.assert_allclose(together[one.id].latent, alone.latent, atol=1e-4)
        assert np.abs(together[one.id].pixels.astype(int) - alone.pixels.astype(int)).max() <= 1
        assert together[one.id].steps_run == alone.steps_run


@settings(max_examples=5)
@given(
    chosen=st.lists(
        st.tuples(st.sampled_from(SIZES), st.sampled_from([1.0, 2.5, 7.0]), st.integers(0, 4), st.booleans()),
        min_size=2,
        max_size=5,
    ),
    max_rows=st.integers(2, 5),
)
def test_any_mix_equals_runs_of_their_own(
    load: LoadFamily, patched: UNetFamily, chosen: list[tuple[Size, float, int, bool]], max_rows: int
) -> None:
    crowd: list[tuple[int, Task]] = []
    for i, (size, guidance, at, hit) in enumerate(chosen):
        start = {"start": FromState(state(size, i), 2, 0.5, noise_seed=i)} if hit else {}
        crowd.append((at, task(f"t{i}", steps=5, size=size, guidance=guidance, seed=i, **start)))
    together = finished(drive(patched, crowd, max_rows))
    for _, one in crowd:
        np.testing.assert_allclose(together[one.id].latent, solo(load(0), one).latent, atol=1e-4)


@pytest.mark.parametrize("sampler", ["", "dpm++2m"])
def test_a_row_resumed_beside_other_sizes_equals_its_uninterrupted_run(
    load: LoadFamily, patched: UNetFamily, sampler: str
) -> None:
    """Not bit-identical: sums over patches, and over other rows, round in another order."""
    start = FromState(state(Size(96, 64), 3), 2, 0.5, noise_seed=3)
    one = task("a", size=Size(96, 64), start=start, sampler=sampler, checkpoint_every=3)
    beside = [task(str(size), size=size, guidance=1.0) for size in SIZES if size != one.size]
    again = resumed(one, drive(patched, [(0, one), (0, beside[0])]))
    with forwards(patched) as seen:
        rest = finished(drive(patched, [(0, again), (0, beside[1]), (1, beside[2])]))["a"]
    assert seen[:2] == [(2 * 24 + 24, 4, 4, 4), (2 * 24 + 24 + 36, 4, 4, 4)]
    assert rest.steps_run == 5
    np.testing.assert_allclose(rest.latent, solo(load(0), one).latent, atol=1e-4)


def test_fifty_steps_stay_within_the_bound(load: LoadFamily, patched: UNetFamily) -> None:
    crowd = [task(str(size), size=size, steps=50, seed=i) for i, size in enumerate((Size(64, 64), Size(32, 48)))]
    together = finished(drive(patched, [(0, one) for one in crowd]))
    for one in crowd:
        np.testing.assert_allclose(together[one.id].latent, solo(load(0), one).latent, atol=1e-4)


def test_the_layout_is_computed_once_per_change_of_the_batch(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[list[Shape]] = []

    def counted(shapes: Sequence[Shape], side: int) -> Layout:
        computed.append(list(shapes))
        return layout_of(shapes, side)

    monkeypatch.setattr(patched_model, "layout_of", counted)
    family = load_family(find_card(str(tiny_folder / "large")), layout="patches")
    crowd = [task(str(size), size=size, guidance=1.0, steps=5) for size in SIZES[:3]]
    with forwards(family) as seen:
        drive(family, zip([0, 0, 3], crowd, strict=True))
    assert seen == [(16 + 24, 4, 4, 4)] * 3 + [(16 + 24 + 24, 4, 4, 4)] * 2 + [(1, 4, 24, 16)] * 3
    assert computed == [[(16, 16), (16, 24)], [(16, 16), (16, 24), (24, 16)]]


def test_images_that_patches_do_not_fill_run_in_a_batch_of_their_size(load: LoadFamily, patched: UNetFamily) -> None:
    crowd = [task(str(size), size=size) for size in (Size(64, 64), Size(96, 64), Size(72, 64))]
    with forwards(patched) as seen:
        together = finished(drive(patched, [(0, one) for one in crowd]))
    assert seen[:2] == [(2 * (16 + 24), 4, 4, 4), (2, 4, 16, 18)]
    for one in crowd:
        np.testing.assert_allclose(together[one.id].latent, solo(load(0), one).latent, atol=1e-4)


def test_a_batch_of_one_size_runs_whole_and_bit_identical(load: LoadFamily, patched: UNetFamily) -> None:
    crowd = [(0, task(name, seed=i)) for i, name in enumerate("ab")]
    with forwards(patched) as seen:
        ours = finished(drive(patched, crowd))
    assert set(seen) == {(4, 4, 16, 16)}
    groups = finished(drive(load(0), crowd))
    assert all(np.array_equal(ours[name].latent, groups[name].latent) for name in "ab")


def test_a_pass_that_fails_leaves_the_denoiser_on_whole_images(patched: UNetFamily) -> None:
    """The engine then runs each row alone."""
    failed: list[torch.Size] = []

    def fail_once(_: Any, given: Any) -> None:
        if not failed:
            failed.append(given[0].shape)
            raise RuntimeError("out of memory")

    hook = patched.denoiser.register_forward_pre_hook(fail_once)
    done = finished(drive(patched, [(0, task("a", size=SIZES[0])), (0, task("b", size=SIZES[1]))]))
    hook.remove()
    assert len(failed) == 1
    assert set(done) == {"a", "b"}


def test_batch_invariant_keeps_groups_and_its_bits(load: LoadFamily, tiny_folder: Path) -> None:
    card = find_card(str(tiny_folder / "large"))
    family = load_family(card, batch_invariant=2, layout="patches")
    together = finished(drive(family, [(0, one) for one in MIXED]))
    for one in MIXED:
        assert np.array_equal(together[one.id].latent, solo(load(2), one).latent)


def test_the_settings_decide_layout_and_side(tiny_folder: Path) -> None:
    card = find_card(str(tiny_folder / "large"))
    for layout, patch_px, shapes in (
        ("patches", 32, [(4 + 6, 4, 8, 8)]),
        ("groups", 32, [(1, 4, 16, 16), (1, 4, 16, 24)]),
    ):
        family = load_warm(card, Settings(layout=layout, patch_px=patch_px, device="cpu"))
        with forwards(family) as seen:
            drive(family, [(0, task(str(size), size=size, guidance=1.0, steps=1)) for size in SIZES[:2]])
        assert seen == shapes


def test_offloaded_operators_take_their_weights_along(patched: UNetFamily, tiny_folder: Path) -> None:
    crowd = [(0, task(str(size), size=size, steps=2)) for size in SIZES[:2]]
    moved = load_family(find_card(str(tiny_folder / "large")), layout="patches", offload="sequential")
    ours, theirs = (finished(drive(family, crowd)) for family in (moved, patched))
    assert all(np.array_equal(ours[name].latent, theirs[name].latent) for name in ours)


def test_a_patch_that_the_levels_cannot_halve_is_refused(tiny_folder: Path) -> None:
    card = find_card(str(tiny_folder / "large"))
    with pytest.raises(ModelError, match=r"patch_px: must be a multiple of 8 pixels for model 'large' \(got 12\)"):
        load_family(card, layout="patches", patch_px=12)


@pytest.mark.parametrize(("path", "batch_invariant"), [("noop:", 0), ("", 2)])
def test_a_model_that_keeps_groups_says_so(path: str, batch_invariant: int, tiny_folder: Path) -> None:
    card = find_card(path or str(tiny_folder / "large"))
    with structlog.testing.capture_logs() as said:
        load_family(card, layout="patches", batch_invariant=batch_invariant)
        load_family(replace(card, role="video"), layout="patches", batch_invariant=batch_invariant)
    assert {(each["event"], each["model"], each["runs"]) for each in said} == {
        ("one batch per size", card.name, "groups")
    }
    assert [each["log_level"] for each in said] == ["warning", "info"]  # clips keep groups whatever is set


def test_the_bundled_model_over_its_four_sizes() -> None:
    """5 steps here, for time; `bench.layouts` runs 50."""
    card = find_card("bundled:large")
    crowd = [
        task(str(size), size=size, guidance=guidance, seed=i, steps=5, prompt="a red fox in the snow")
        for i, (size, guidance) in enumerate(zip(SIZES, (2.5, 1.0, 4.0, 2.5), strict=True))
    ]
    whole, cut = load_family(card), load_family(card, layout="patches")
    with forwards(cut) as seen:
        together = finished(drive(cut, [(0, one) for one in crowd]))
    assert set(seen) == {(4 + 6 + 6 + 9 + 4 + 6 + 9, 4, 8, 8)}  # three rows with guidance
    for one in crowd:
        np.testing.assert_allclose(together[one.id].latent, solo(whole, one).latent, atol=1e-4)
