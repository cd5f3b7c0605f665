"""Layouts of patches as pure values: each patch has one place, neighbours are symmetric, split and join are inverse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.gpu_worker.engine.patches.layout import NONE, Shape, fits, layout_of, patch_side
from shared.domain.types import Size
from shared.models import find_card
from shared.models.card import SizeRule
from tests.unit.gpu_worker.engine.patches.conftest import Grids, batch_of, grids, images_of


def shapes_of(mix: Grids, side: int) -> list[Shape]:
    return [(rows * side, columns * side) for rows, columns in mix]


@given(mix=grids(), side=st.integers(1, 4))
def test_every_patch_has_one_place(mix: Grids, side: int) -> None:
    layout = layout_of(shapes_of(mix, side), side)
    assert sorted(layout.order) == list(range(len(mix)))
    ordered = [mix[i] for i in layout.order]
    assert ordered == sorted(mix)
    counts = [rows * columns for rows, columns in ordered]
    assert np.diff(layout.request_offsets).tolist() == counts
    assert layout.patches == len(layout.requests) == sum(counts)
    assert [layout.requests.tolist().count(i) for i in range(len(mix))] == counts


@given(mix=grids(), side=st.integers(1, 4))
def test_resolutions_cut_requests_and_patches_into_runs(mix: Grids, side: int) -> None:
    layout = layout_of(shapes_of(mix, side), side)
    assert len(layout.resolutions) == len(set(mix))
    requests = [i for each in layout.resolutions for i in range(len(mix))[each.requests]]
    patches = [i for each in layout.resolutions for i in range(layout.patches)[each.patches]]
    assert requests == list(range(len(mix)))
    assert patches == list(range(layout.patches))
    for each in layout.resolutions:
        assert {mix[i] for i in layout.order[each.requests]} == {(each.rows, each.columns)}
        assert {layout.requests[i] for i in range(layout.patches)[each.patches]} == set(
            range(each.requests.start, each.requests.stop)
        )


@given(mix=grids(), side=st.integers(1, 4))
def test_neighbours_are_symmetric_and_of_the_same_image(mix: Grids, side: int) -> None:
    layout = layout_of(shapes_of(mix, side), side)
    for one, other in ((layout.left, layout.right), (layout.up, layout.down)):
        for there, back in ((one, other), (other, one)):
            for patch, neighbour in enumerate(there):
                if neighbour != NONE:
                    assert back[neighbour] == patch
                    assert layout.requests[neighbour] == layout.requests[patch]
    rows, columns = (sum(each[axis] for each in mix) for axis in (0, 1))
    missing = [int((side == NONE).sum()) for side in (layout.left, layout.right, layout.up, layout.down)]
    assert missing == [rows, rows, columns, columns]


@given(mix=grids(), side=st.integers(1, 4), seed=st.integers(0, 99))
def test_joined_patches_are_the_images(mix: Grids, side: int, seed: int) -> None:
    images = images_of(mix, side, channels=2, seed=seed)
    batch = batch_of(images, side)
    patches = batch.split(images)
    assert patches.shape == (batch.layout.patches, 2, side, side)
    assert all(torch.equal(one, other) for one, other in zip(batch.join(patches), images, strict=True))


@given(mix=grids(), side=st.integers(1, 3), reach=st.tuples(*[st.integers(0, 7)] * 4), seed=st.integers(0, 99))
def test_halos_are_the_cells_around_a_patch(mix: Grids, side: int, reach: tuple[int, ...], seed: int) -> None:
    """Also where they are wider than a patch."""
    top, bottom, left, right = reach
    images = images_of(mix, side, channels=1, seed=seed)
    batch = batch_of(images, side)
    wide = batch.with_halo(batch.split(images), top, bottom, left, right)
    want = []
    for i in batch.layout.order:
        framed = torch.nn.functional.pad(images[i], (left, right, top, bottom))
        for row in range(mix[i][0]):
            for column in range(mix[i][1]):
                rows = slice(row * side, (row + 1) * side + top + bottom)
                want.append(framed[:, rows, column * side : (column + 1) * side + left + right])
    assert torch.equal(wide, torch.stack(want))


@pytest.mark.parametrize("shapes", [[], [(8, 8), (8, 6)], [(0, 4)]])
def test_a_batch_that_patches_do_not_fill_is_refused(shapes: list[Shape]) -> None:
    with pytest.raises(ValueError, match="multiples of 4 latent cells"):
        layout_of(shapes, 4)


def listed(*sides: tuple[int, int]) -> SizeRule:
    return SizeRule(tuple(Size(width, height) for width, height in sides))


@pytest.mark.parametrize(
    ("sizes", "cell_px", "least", "want"),
    [
        (find_card("bundled:large").sizes, 4, 4, 8),
        (listed((512, 512), (768, 512), (1024, 1024)), 8, 8, 32),
        (listed((512, 512)), 8, 8, 64),
        (listed((96, 96), (144, 144)), 8, 4, 4),  # 6 cells divide both sizes, but a UNet of 3 levels needs 4
        (listed((64, 64), (72, 72)), 8, 8, 8),  # no side divides both; 72 pixels run whole
        (listed((448, 448), (672, 672)), 8, 8, 8),  # fills 448 pixels; 672 run whole
        (listed((480, 480), (960, 960)), 8, 4, 60),
        (SizeRule(min_px=512, max_px=2048), 8, 4, 32),
        (SizeRule(min_px=8, max_px=64), 8, 64, 64),
    ],
)
def test_the_side_comes_from_the_card(sizes: SizeRule, cell_px: int, least: int, want: int) -> None:
    assert patch_side(sizes, Size(1024, 1024), cell_px, least) == want


@given(cells=st.lists(st.integers(1, 96), min_size=1, max_size=4), multiple=st.sampled_from([1, 2, 4, 8]))
def test_a_side_fills_every_listed_size_that_levels_can_halve(cells: list[int], multiple: int) -> None:
    side = patch_side(listed(*((8 * each, 8 * each) for each in cells)), Size(512, 512), 8, multiple)
    assert side % multiple == 0
    assert all(fits((each, each), side) for each in cells if each % multiple == 0)
