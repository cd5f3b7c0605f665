"""The setting layout=packed: SD3, FLUX and SANA run images of different sizes in one forward pass, equal to groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from services.gpu_worker.engine.rows import FromState, Task
from services.gpu_worker.families import load_family
from shared.domain.types import Size
from shared.models import find_card
from tests.unit.gpu_worker.engine.conftest import drive, finished, resumed, solo, task
from tests.unit.gpu_worker.families.conftest import LoadTiny, a_task, drawn

NAMES = ["sd3", "sd3-without-t5", "flux-dev", "flux-schnell", "sana"]


def crowd(family: Any) -> list[Task]:
    """Three sizes, four timesteps at a time, with and without guidance; `hit` starts from a cached state."""
    shape = family.latent_shape(Size(32, 32))
    state = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    return [
        a_task("wide", size=Size(32, 16)),
        a_task("tall", size=Size(16, 32), guidance=1.0, prompt="two boats at night", seed=8),
        a_task("hit", size=Size(32, 32), guidance=2.0, negative_prompt="blurry", start=FromState(state, 2)),
        a_task("later", size=Size(16, 32), steps=4, prompted_from=2, seed=9),
    ]


@contextmanager
def batches(family: Any) -> Iterator[list[int]]:
    """Return the number of rows in the first tensor of each forward pass."""
    seen: list[int] = []

    def count(_: Any, given: Any, named: Any) -> None:
        seen.append(len(given[0] if given else named["hidden_states"]))

    hook = family.denoiser.register_forward_pre_hook(count, with_kwargs=True)
    yield seen
    hook.remove()


@pytest.fixture(scope="module")
def packed(saved: Callable[[str], Path]) -> Callable[..., Any]:
    """Each is loaded once."""

    @cache
    def load(name: str, **choices: Any) -> Any:
        return load_family(find_card(str(saved(name))), layout="packed", **choices)

    return load


@pytest.mark.parametrize("name", NAMES)
def test_a_mix_of_sizes_is_one_forward_pass_and_equals_groups(
    name: str, packed: Callable[..., Any], tiny_family: LoadTiny
) -> None:
    family = packed(name)
    tasks = crowd(family)
    with batches(family) as seen:
        together = drawn(family, *tasks, at=(0, 0, 1, 1))
    assert len(seen) == tasks[0].steps
    for one in tasks:
        alone = drawn(tiny_family(name), one)[one.id]
        np.testing.assert_allclose(together[one.id].latent, alone.latent, atol=1e-4)
        assert together[one.id].steps_run == alone.steps_run


@pytest.mark.parametrize("name", ["sd3", "flux-dev", "sana"])
def test_a_row_resumed_beside_other_sizes_equals_its_uninterrupted_run(
    name: str, packed: Callable[..., Any], tiny_family: LoadTiny
) -> None:
    """Not bit-identical: patches of 2 × 2 tokens instead of 4 × 4, and other rows, round in another order."""
    family = packed(name)
    one = task("a", size=Size(32, 16), steps=6, guidance=2.0, checkpoint_every=2)
    wide, tall, square = (task(str(size), size=size) for size in (Size(64, 32), Size(16, 24), Size(32, 32)))
    again = resumed(one, drive(family, [(0, wide), (0, one)]))
    with batches(family) as seen:
        rest = finished(drive(family, [(0, tall), (0, again), (1, square)]))["a"]
    assert len(seen) == 11  # square's steps: each a forward pass for all rows
    assert rest.steps_run == 4
    np.testing.assert_allclose(rest.latent, solo(tiny_family(name), one).latent, atol=1e-4)


@pytest.mark.parametrize("name", ["sd3", "flux-dev", "sana"])
def test_fifty_steps_stay_within_the_bound(name: str, packed: Callable[..., Any], tiny_family: LoadTiny) -> None:
    tasks = [a_task(str(size), size=size, steps=50, guidance=1.0) for size in (Size(32, 16), Size(16, 16))]
    together = drawn(packed(name), *tasks)
    for one in tasks:
        np.testing.assert_allclose(together[one.id].latent, drawn(tiny_family(name), one)[one.id].latent, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_one_size_runs_whole_and_bit_identical(
    name: str, packed: Callable[..., Any], tiny_family: LoadTiny
) -> None:
    tasks = [a_task("a"), a_task("b", seed=8, guidance=2.0)]
    ours, groups = (drawn(family, *tasks) for family in (packed(name), tiny_family(name)))
    assert all(np.array_equal(ours[task.id].latent, groups[task.id].latent) for task in tasks)


@pytest.mark.parametrize("name", NAMES)
def test_batch_invariant_keeps_groups_and_its_bits(
    name: str, packed: Callable[..., Any], tiny_family: LoadTiny
) -> None:
    with structlog.testing.capture_logs() as said:
        family = packed(name, batch_invariant=2)  # no other test loads it
    assert [(each["event"], each["model"]) for each in said] == [("one batch per size", family.card.name)]
    tasks = crowd(family)
    together = drawn(family, *tasks)
    for one in tasks:
        assert np.array_equal(together[one.id].latent, drawn(tiny_family(name, 2), one)[one.id].latent)


@pytest.mark.parametrize("name", ["sd3", "flux-dev", "sana"])
def test_offloaded_modules_take_their_weights_along(name: str, packed: Callable[..., Any]) -> None:
    tasks = crowd(packed(name))[:2]
    moved, stay = (drawn(packed(name, offload=offload), *tasks) for offload in ("sequential", "none"))
    assert all(np.array_equal(moved[task.id].latent, stay[task.id].latent) for task in tasks)
