from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from services.replay.traces import neighbours
from services.replay.traces.neighbours import find_neighbours, load_neighbours
from shared.models.k_table import KTable, Level
from tests.unit.replay.house import load_of, topics


@pytest.mark.parametrize("floor", [0.65, -1.0])
@pytest.mark.parametrize("groups", [0, 3])
def test_they_are_the_nearest_earlier_requests(monkeypatch: pytest.MonkeyPatch, groups: int, floor: float) -> None:
    monkeypatch.setattr(neighbours, "AT_A_TIME", 7)
    monkeypatch.setattr(neighbours, "BLOCK", 50)
    said, rows = topics(300)
    table = KTable((Level(5, floor),))
    load = load_of(said, rows, width=9, groups=groups, table=table)
    points = rows[load.text_of]
    for request, (indices, cosines, cut) in enumerate(load.neighbours.rows()):
        exact = points[:request] @ points[request]
        if groups:
            exact[np.arange(request) % groups != request % groups] = -2
        above = np.sort(exact[exact > floor])[::-1]
        assert cosines == pytest.approx(above[:9].tolist(), abs=1e-6)
        assert cut == (len(above) > 9)
        assert exact[indices] == pytest.approx(np.array(cosines), abs=1e-6)
        assert cosines == sorted(cosines, reverse=True)


def test_of_equal_ones_the_latest_comes_first() -> None:
    near = find_neighbours(np.eye(2, dtype=np.float32), np.array([0, 0, 1, 0]), None, floor=0.5, width=4)
    assert near.indices[3].tolist() == [1, 0, -1, -1]
    assert near.similarities[3].tolist() == [1, 1, -1, -1]


def test_saved_and_loaded_they_are_the_same(tmp_path: Path) -> None:
    near = load_of(*topics(40)).neighbours
    near.save(tmp_path / "sub" / "near.npz")
    again = load_neighbours(tmp_path / "sub" / "near.npz")
    assert list(again.rows()) == list(near.rows())
    assert again.floor == near.floor


def test_a_run_that_was_broken_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "AT_A_TIME", 10)
    monkeypatch.setattr(neighbours, "SAVED", 40)
    said, rows = topics(130)
    text_of = load_of(said, rows).text_of
    begun, heard = tmp_path / "begun.npz", list[int]()

    def broken(count: int) -> None:
        heard.append(count)
        if sum(heard) == 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_neighbours(rows, text_of, None, floor=0.5, width=8, advance=broken, begun=begun)
    assert len(load_neighbours(begun)) == 80
    heard.clear()
    resumed = find_neighbours(rows, text_of, None, floor=0.5, width=8, advance=heard.append, begun=begun)
    assert heard == [80, 10, 10, 10, 10, 10]
    assert not begun.exists()
    whole = find_neighbours(rows, text_of, None, floor=0.5, width=8)
    assert np.array_equal(resumed.indices, whole.indices)
    assert np.array_equal(resumed.similarities, whole.similarities)
    assert np.array_equal(resumed.cut, whole.cut)
