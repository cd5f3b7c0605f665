"""What the bar of `afterimage generate` says while a picture comes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from rich.console import Console

from services.cli.generate import _moved, draw
from shared.client import Accepted, Progress
from shared.errors import UnavailableError
from tests.unit.cli.views import picture


def test_nothing_is_drawn_before_a_step_is_done() -> None:
    plan = picture().plan
    assert _moved(Accepted("j1", 3, plan)) == {"description": "3 ahead in the queue"}
    assert _moved(Accepted("j1", 0, plan)) == {"description": "queued, next in turn"}
    gone = "its worker is gone, another one goes on"
    assert _moved(Progress("j1", 20, 50, queue_position=2, waits_again=gone)) == {"description": gone}
    assert _moved(Progress("j1", 20, 50)) == {"description": "drawing", "completed": 20, "total": 50, "at": "20/50"}


class GoesAway:
    """A gateway that is lost for longer than a client tries."""

    def __init__(self, accepts: bool) -> None:
        self._accepts = accepts

    async def generate_stream(self, prompt: str, **_: object) -> AsyncIterator[Accepted]:
        if self._accepts:
            yield Accepted("j1", 0, picture().plan)
        raise UnavailableError("away")


async def test_giving_up_says_where_the_picture_will_be() -> None:
    lost: Any = GoesAway(accepts=True)
    with pytest.raises(UnavailableError, match=r"away; job j1 .*afterimage jobs show j1 -o FILE --target here:1"):
        await draw(lost, "a fox", {}, Console(quiet=True), target="here:1")
    never: Any = GoesAway(accepts=False)
    with pytest.raises(UnavailableError, match=r"^away$"):
        await draw(never, "a fox", {}, Console(quiet=True))
