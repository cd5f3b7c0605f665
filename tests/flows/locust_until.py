"""A second Locust file: end the run as soon as the calls so far show what the test of LOCUST_UNTIL looks for.

Locust loads it after load/locustfile.py, and so under one more name than the file has as a module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gevent
from locust import events, stats

Calls = Sequence[Mapping[str, Any]]
REFUSED = "RESOURCE_EXHAUSTED"


def a_generated_image(calls: Calls) -> bool:
    return any(call["kind"] in ("hit", "miss", "exact") for call in calls)


def an_image_and_a_refusal(calls: Calls) -> bool:
    return a_generated_image(calls) and any(call["name"] == REFUSED for call in calls)


def a_client_that_came_back(calls: Calls) -> bool:
    refused = {call["key"] for call in calls if call["name"] == REFUSED}
    return any(call["kind"] == "miss" and call["key"] in refused for call in calls)


UNTIL: dict[str, Callable[[Calls], bool]] = {
    look.__name__: look for look in (a_generated_image, an_image_and_a_refusal, a_client_that_came_back)
}


@events.test_start.add_listener
def _watch(environment: Any, **_: Any) -> None:
    gevent.spawn(_end, environment, UNTIL[os.environ["LOCUST_UNTIL"]])


def _end(environment: Any, seen: Callable[[Calls], bool]) -> None:
    while not seen(sys.modules["locustfile"].RECORDED):
        gevent.sleep(0.1)
    gevent.sleep(2 * stats.CSV_STATS_INTERVAL_SEC)  # Locust writes its statistics at this interval
    environment.runner.quit()
