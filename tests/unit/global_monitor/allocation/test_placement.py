"""Workers keep the models that they run and that they are best at."""

from __future__ import annotations

from services.global_monitor.allocation.fleet import Group
from services.global_monitor.allocation.placement import Band, place
from services.global_monitor.allocation.workload import Workload


def test_who_runs_the_large_model_keeps_it() -> None:
    band = Band(Group(4, 1.0, 4.0), ("a", "b", "c", "d"))
    now = {"a": "small", "b": "large", "c": "large", "d": "large"}
    models = place([band], now, 2, "large", "small", Workload(1, 1), large_refines=True)
    assert models == {"a": "small", "b": "large", "c": "large", "d": "small"}


def test_whoever_is_best_at_the_large_model_gets_it_when_that_is_needed() -> None:
    fast, slow = Band(Group(1, 4.0, 4.0), ("fast",)), Band(Group(1, 1.0, 4.0), ("slow",))
    now = {"fast": "small", "slow": "large"}
    need = place([fast, slow], now, 1, "large", "small", Workload(3, 3), large_refines=True)
    assert need == {"fast": "large", "slow": "small"}
    enough = place([fast, slow], now, 1, "large", "small", Workload(1, 3), large_refines=True)
    assert enough == now  # a switch for nothing is not made


def test_nobody_gets_a_model_it_cannot_run() -> None:
    able, unable = Band(Group(1, 1.0, 4.0), ("able",)), Band(Group(1, 1.0, 0.0), ("unable",))
    now = {"able": "large", "unable": "small"}
    assert place([able, unable], now, 1, "large", "small", Workload(1, 1), large_refines=True) == {
        "able": "small",
        "unable": "large",
    }
