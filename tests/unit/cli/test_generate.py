"""What the bar of `afterimage generate` says while a picture comes."""

from __future__ import annotations

from services.cli.generate import _moved
from shared.client import Accepted, Progress
from tests.unit.cli.views import picture


def test_nothing_is_drawn_before_a_step_is_done() -> None:
    plan = picture().plan
    assert _moved(Accepted("j1", 3, plan)) == {"description": "3 ahead in the queue"}
    assert _moved(Accepted("j1", 0, plan)) == {"description": "queued, next in turn"}
    assert _moved(Progress("j1", 20, 50)) == {"description": "drawing", "completed": 20, "total": 50, "at": "20/50"}
