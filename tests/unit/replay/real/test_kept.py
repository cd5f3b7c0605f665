"""Which runs of a replay on real models are taken over, and what an unknown source becomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.replay.policy import read_policy
from services.replay.real import kept
from services.replay.real.figures import decisions_of
from services.replay.real.kept import Kept
from services.replay.real.settings import stand_for
from services.replay.real.sitting import Answer, Load, Sitting
from services.replay.results.relations import by_relation
from shared.models.card_lookup import find_card
from shared.runtime.settings import Settings
from tests.unit.replay.house import trace_of

LOAD = Load(trace_of(["a red fox", "a red fox"]), 0, find_card("bundled:large"))
SITTING = Sitting((Answer(0, 1.0, error="gone"), Answer(1, 1.0, "b", 10, "a")), 1.0, 2.0, 2.0, 0, 5, 500)


def test_a_run_counts_for_the_weights_of_every_model_that_generates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(name: str) -> Kept:
        settings = Settings(data_dir=tmp_path, segmenter="bundled:segmenter", small="bundled:small")
        return Kept(tmp_path, name, LOAD, stand_for(name, read_policy(name), settings, 1000), "encoder")

    for name in ("modm", "lru"):
        assert of(name).done(SITTING, {}) == of(name).found() == SITTING
    trained = {"large": LOAD.card, "small": find_card("bundled:motion")}
    monkeypatch.setattr(kept, "served_cards", lambda _: trained)
    assert of("modm").found() is None
    assert of("lru").found() == SITTING  # latents are of the large model alone


def test_a_source_whose_request_got_an_error_is_unknown() -> None:
    made = decisions_of(SITTING)
    assert (made.start_step.tolist(), made.source.tolist()) == ([0, 10], [-1, -1])
    hits = {kind: one["hits"] for kind, one in by_relation(made, LOAD.trace, 0, 50).items() if one["hits"]}
    assert hits == {"other": 0.5}
