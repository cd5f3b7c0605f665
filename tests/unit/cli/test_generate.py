"""What the bar of `afterimage generate` says while a picture comes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from services.cli.display.words import ProgressBars
from services.cli.following import Waits, _moved, draw
from services.cli.generate import _explain, _login, _steps
from shared.client import Accepted, OnWait, Picture, Progress, Waiting
from shared.domain.errors import (
    AfterimageError,
    InvalidRequestError,
    OverloadedError,
    StorageFullError,
    UnavailableError,
)
from tests.unit.cli.views import picture


def test_nothing_is_drawn_before_a_step_is_done() -> None:
    plan = picture().plan
    assert _moved(Accepted("j1", 3, plan)) == {"description": "3 ahead in the queue"}
    assert _moved(Accepted("j1", 0, plan)) == {"description": "queued, next in turn"}
    gone = "its worker is gone; another worker continues"
    assert _moved(Progress("j1", 20, 50, queue_position=2, waits_again=gone)) == {"description": gone}
    assert _moved(Progress("j1", 20, 50)) == {"description": "generating", "completed": 20, "total": 50, "at": "20/50"}


def test_the_user_is_the_login_name_where_the_system_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ana")
    assert _login() == "ana"

    def unnamed() -> str:
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr("getpass.getuser", unnamed)
    assert _login() == ""


def test_steps_are_a_number_or_left_to_the_plan() -> None:
    assert (_steps("auto"), _steps("25")) == (None, 25)
    for text in ("fast", "-5", "2.5", ""):
        with pytest.raises(InvalidRequestError, match="steps: must be auto or a whole number"):
            _steps(text)


def test_a_note_that_is_the_reason_is_printed_once() -> None:
    drawn, console = picture(), Console(width=200)
    why = ("k_table: none counts for large", "k_table: run `afterimage profile`")
    plan = replace(drawn.plan, reason=f"Generated from noise: {'; '.join(why)}.", degraded=(*why, "index: away"))
    with console.capture() as said:
        _explain(replace(drawn, job=replace(drawn.job, plan=plan)), "Started.", console, why=False)
    assert said.get().splitlines()[2:] == ["note: index: away", "note: mind the gap"]


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
    with pytest.raises(
        UnavailableError, match=r"away; job j1 .*afterimage jobs show j1 -o FILE --target here:1 --tenant acme$"
    ):
        await draw(lost, "a fox", {}, Console(quiet=True), where=" --target here:1 --tenant acme")
    never: Any = GoesAway(accepts=False)
    with pytest.raises(UnavailableError, match=r"^away$"):
        await draw(never, "a fox", {}, Console(quiet=True))


WAITS: tuple[tuple[AfterimageError, float], ...] = (
    (StorageFullError("12 MiB left", retry_after_s=30.0), 31.2),
    (StorageFullError("11 MiB left", retry_after_s=30.0), 33.0),
    (OverloadedError("9 jobs are waiting", retry_after_s=0.4), 0.5),
    (OverloadedError("message larger than max"), 0.2),
    (UnavailableError("shutting down", retry_after_s=2.0), 2.1),
)


class Full:
    """A gateway that takes a request at last."""

    async def generate_stream(self, prompt: str, *, on_wait: OnWait, **_: object) -> AsyncIterator[Picture]:
        for error, delay_s in WAITS:
            on_wait(Waiting(error, delay_s))
        yield picture(prompt)


async def test_without_a_terminal_each_reason_to_wait_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    full: Any = Full()
    (drawn,) = await draw(full, "a fox", {}, Console(force_terminal=False))
    assert drawn.png
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "the disk is full: trying again in 31 s (12 MiB left)",
        "no room for now: trying again in a moment (9 jobs are waiting)",
        "not available for now: trying again in a moment (message larger than max)",
    ]


def test_the_bar_says_why_it_waits(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ProgressBars(console=Console(force_interactive=True, quiet=True))
    task = bar.add_task("asking", total=None)
    said = []
    for error, delay_s in WAITS[:2]:
        Waits(bar, task)(Waiting(error, delay_s))
        said.append(bar.tasks[0].description)
    assert said == ["the disk is full: trying again in 31 s", "the disk is full: trying again in 33 s"]
    assert capsys.readouterr().err == ""
