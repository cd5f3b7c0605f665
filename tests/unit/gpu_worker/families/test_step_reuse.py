"""Reuse between steps by family: whole images of transformers, packed too, and patches of SDXL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from services.gpu_worker.engine.rows import FromState
from services.gpu_worker.families import load_family
from services.gpu_worker.families.pipeline import PipelineFamily
from shared.domain.types import Size
from shared.models import find_card
from tests.unit.gpu_worker.engine.reuse.conftest import always, never, odd_patches
from tests.unit.gpu_worker.families.conftest import a_task, drawn

CROWD = [
    a_task("wide", size=Size(64, 32), steps=4),
    a_task("square", size=Size(64, 64), steps=4, guidance=2.0, negative_prompt="blurry", seed=9),
]


@pytest.mark.parametrize(
    ("name", "layout"), [("sdxl", "patches"), ("sd3", "groups"), ("flux-schnell", "groups"), ("sana", "groups")]
)
def test_blocks_of_every_family(saved: Callable[[str], Path], name: str, layout: str) -> None:
    family: Any = load_family(find_card(str(saved(name))), layout=layout, patch_px=16 * (layout == "patches"))
    plain = drawn(family, *CROWD)
    reuse = family.reuse_blocks(never())
    same = drawn(family, *CROWD)
    assert reuse.counts.seen > 0 == reuse.counts.reused
    family.reuse_blocks(odd_patches())
    some = drawn(family, *CROWD)
    assert 0.1 < reuse.counts.share < 0.2  # half of the patches, in half of the steps of one of two runs
    family.reuse_blocks(always())
    most = drawn(family, *CROWD)
    for one in CROWD:
        np.testing.assert_array_equal(same[one.id].latent, plain[one.id].latent)
        near, far = (np.square(each[one.id].latent - plain[one.id].latent).mean() for each in (some, most))
        assert 0 < near < far < np.square(plain[one.id].latent).mean()


class ByTime:
    """Reuses in every second block, of images whose timestep is even; records how many of how many reuse."""

    def __init__(self) -> None:
        self.shares: set[float] = set()

    def reused(self, block: int, timesteps: Any, in_a_row: np.ndarray, changes: Any) -> np.ndarray:
        found = (np.asarray(timesteps).astype(int) % 2 == block % 2) & (in_a_row < 2)
        self.shares.add(found.mean())
        return found


@pytest.mark.parametrize("name", ["sd3", "flux-dev", "flux-schnell", "sana"])
def test_packed_images_are_reused_as_whole_ones_are(saved: Callable[[str], Path], name: str) -> None:
    """All join and leave together, so that the packed batch is cut the same way in all steps."""
    card = find_card(str(saved(name)))
    groups: Any
    packed: Any
    groups, packed = (load_family(card, layout=layout) for layout in ("groups", "packed"))
    state = np.random.default_rng(3).standard_normal(groups.latent_shape(Size(32, 32))).astype(np.float32)
    tasks = [
        *CROWD,
        a_task("tall", size=Size(32, 64), steps=4, guidance=1.0, prompt="two boats at night"),
        a_task("hit", size=Size(32, 32), steps=7, start=FromState(state, 3)),
    ]
    plain, policy = drawn(packed, *tasks), ByTime()
    groups.reuse_blocks(ByTime())
    packed.reuse_blocks(policy)
    whole, together = (drawn(family, *tasks) for family in (groups, packed))
    assert any(0 < share < 1 for share in policy.shares)
    for one in tasks:
        np.testing.assert_allclose(together[one.id].latent, whole[one.id].latent, atol=1e-4)
        assert together[one.id].skipped == whole[one.id].skipped > 0
        assert not np.allclose(together[one.id].latent, plain[one.id].latent, atol=1e-3)


def test_a_packed_image_that_joins_a_batch_of_the_same_cut(saved: Callable[[str], Path]) -> None:
    """The others' cached tensors are put together with the new image, of which all blocks run."""
    groups: Any
    packed: Any
    groups, packed = (load_family(find_card(str(saved("sd3"))), layout=layout) for layout in ("groups", "packed"))
    sizes = {"a": Size(64, 32), "b": Size(32, 32), "c": Size(64, 32), "d": Size(32, 32)}
    tasks = [a_task(name, size=size, seed=i) for i, (name, size) in enumerate(sizes.items())]
    policy, found = ByTime(), []
    for family in (groups, packed):
        family.reuse_blocks(policy)
        found.append(drawn(family, *tasks, at=(0, 0, 2, 2)))
    assert any(0 < share < 1 for share in policy.shares)
    for whole, together in zip(*(each.values() for each in found), strict=True):
        np.testing.assert_allclose(together.latent, whole.latent, atol=1e-4)
        assert together.skipped == whole.skipped > 0


def test_packed_images_that_join_and_leave_are_cut_anew(saved: Callable[[str], Path]) -> None:
    family = load_family(find_card(str(saved("sd3"))), layout="packed")
    assert isinstance(family, PipelineFamily)
    family.reuse_blocks(always())
    tasks = [a_task("a", size=Size(64, 64)), a_task("b", size=Size(32, 64)), a_task("c", size=Size(16, 16), steps=2)]
    with structlog.testing.capture_logs() as logs:
        done = drawn(family, *tasks, at=(0, 2, 4))
    assert [line for line in logs if line["log_level"] == "warning"] == []
    # all blocks run in the steps 0, 2, 4 and 6, where the cut is another than in the step before
    assert {name: one.skipped for name, one in done.items()} == pytest.approx({"a": 2 / 5, "b": 2 / 5, "c": 1 / 2})
