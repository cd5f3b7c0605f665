"""Everything in one container: it draws through its port, and remembers after `down`."""

from __future__ import annotations

import pytest

from shared.client import Client
from shared.domain.types import PlanSource
from tests.compose.project import BUILD_S, Compose


def test_it_draws_and_its_data_outlives_it(docker: None, tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = {"large": "bundled:small", "torch_threads": 1, "log_level": "warning"}
    compose = Compose(tmp_path_factory.mktemp("embedded"), ("embedded.yaml",), settings, passwords=False)
    pictures = []
    try:
        compose("build", limit_s=BUILD_S)
        for _ in range(2):
            compose.up()
            with Client(f"127.0.0.1:{compose.ports[0]}", retry_s=60.0) as client:
                pictures.append(client.generate("a red ball on the grass", seed=1, steps=20, timeout_s=300.0))
            compose.down()
    finally:
        compose.down("-v")
    first, repeat = pictures
    assert (first.plan.source, repeat.plan.source) == (PlanSource.NOISE, PlanSource.EXACT)
    assert first.png == repeat.png
