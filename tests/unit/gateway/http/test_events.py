"""Which previews a stream sends."""

from __future__ import annotations

import pytest

from services.gateway.http.errors import HttpError
from services.gateway.http.events import Partials, Received
from shared.client.views import Progress


def sent(wanted: int, steps: list[int], of: int, without: tuple[int, ...] = ()) -> list[int]:
    partials = Partials(wanted)
    return [step for step in steps if partials.take(Progress("job", step, of, b"" if step in without else b"png"))]


def test_previews_are_spread_over_the_steps() -> None:
    assert sent(3, list(range(1, 100)), 100) == [25, 50, 75]
    assert sent(1, list(range(1, 100)), 100) == [50]
    assert not sent(0, list(range(1, 100)), 100)


def test_a_late_start_and_missing_previews_are_made_up_for() -> None:
    assert sent(2, [61, 70, 80, 90], 100) == [80, 90]
    assert sent(2, [1, 34, 35, 67, 99], 100, without=(34, 67)) == [35, 99]


def test_an_event_id_says_what_was_received_of_each_image() -> None:
    received = Received(3)
    assert (received.note(1, "2"), received.note(2, "e")) == ("0.2.0", "0.2.e")
    again = Received(3, "0.2.e")
    assert [again.previews(index) for index in range(3)] == [0, 2, 0]
    assert [again.ended(index) for index in range(3)] == [False, False, True]


@pytest.mark.parametrize("last", ["0", "0.0.0", "0.4", "0.x", "..", "0.-1"])
def test_an_id_of_another_stream_is_refused(last: str) -> None:
    with pytest.raises(HttpError, match="Last-Event-ID"):
        Received(2, last)
