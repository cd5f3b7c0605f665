"""Which dtype a worker computes in, and who must know it."""

from __future__ import annotations

from typing import Any

import pytest

from services.gpu_worker.models.residency import placed_cards
from shared.runtime.settings import Settings

TOLD = "latents stored in another dtype than other services look up"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def test_a_worker_tells_of_a_dtype_that_no_other_process_can_know_of(settings: Settings, logs: list[Any]) -> None:
    """On a CPU a half-precision model is computed in float32, and gateways and retrievers look for its card's dtype."""
    asked = settings.model_copy(update={"large": "sana-1.6b", "device": "auto"})
    assert placed_cards(asked, alone=False)["sana-1.6b"].dtype == "float32"
    (line,) = logs
    assert (line["event"], line["model"], line["dtype"], line["looked_for"]) == (
        TOLD,
        "sana-1.6b",
        "float32",
        "bfloat16",
    )
    assert "AFTERIMAGE_DEVICE=cpu" in line["rule"]


@pytest.mark.parametrize(
    ("changes", "alone"),
    [
        ({}, True),
        ({"device": "cpu"}, False),
        ({"dtype": "bfloat16"}, False),
        ({"large": "sd-1.5", "dtype": "float32"}, False),
    ],
)
def test_where_all_know_it_nothing_is_told(
    settings: Settings, logs: list[Any], changes: dict[str, str], alone: bool
) -> None:
    asked = settings.model_copy(update={"large": "sana-1.6b", "device": "auto"} | changes)
    assert placed_cards(asked, alone=alone)
    assert logs == []
