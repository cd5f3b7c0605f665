"""A look at a broker: its version and our queues, and nothing is declared."""

from __future__ import annotations

import pytest
from yarl import URL

from shared.bus.rabbitmq import probe
from shared.bus.rabbitmq.probe import probe_broker
from tests.contracts.servers import url_of


async def test_a_look_says_version_and_queues_and_names_a_wrong_password() -> None:
    url = url_of("rabbitmq")
    seen = await probe_broker(url, 10.0)
    assert seen.wrong == ""
    assert "queues" in seen.found
    assert seen.round_trip_s > 0
    refused = await probe_broker(str(URL(url).with_password("n0t-a-secret")), 10.0)
    assert "refuses this user or password" in refused.wrong
    assert "n0t-a-secret" not in str(refused)


async def test_a_broker_that_is_too_old_is_wrong_and_one_without_priorities_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "WITH_PRIORITIES", (99, 0))
    assert "priority of a request has no effect" in (await probe_broker(url_of("rabbitmq"), 10.0)).warnings[0]
    monkeypatch.setattr(probe, "LEAST", (98, 1))
    assert "RabbitMQ must be 98.1 or newer" in (await probe_broker(url_of("rabbitmq"), 10.0)).wrong
