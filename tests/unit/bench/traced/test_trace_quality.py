"""The four measures over a trace's hits, from images and answers made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from bench.measuring.judging import Verdict
from bench.traced.closed_loop import Drawn
from bench.traced.trace_quality import by_relation, quality_of, report, similarity_by_k
from load.sessions import SHIPPED, Prompt, read_trace
from services.embedder.encoder import Encoder, encoder_folder
from services.gpu_worker.jobs.codecs import encode_png

COUNT = 12


def answer(index: int, relation: str, k: int, source: int | None = None) -> Drawn:
    return Drawn(
        index=index, source="latent" if k else "noise", start_step=k, steps=50, steps_run=50 - k,
        similarity=0.9 + k / 1000, seed=index, seconds=1.0, from_prompt="", degraded=(), timings={},
        relation=relation, run_of=50, job=f"job {index}", source_job="" if source is None else f"job {source}",
    )  # fmt: skip


def images(seed: int) -> dict[int, bytes]:
    rng = np.random.default_rng(seed)
    return {index: encode_png(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)) for index in range(COUNT)}


def rows() -> list[Prompt]:
    first = read_trace(SHIPPED)[0]
    return [first] * COUNT


def test_copies_of_others_images_and_seeds_without_variety_break_their_bounds() -> None:
    noise, verdict = images(1), Verdict(0.5, {"object": True})
    cached = {**images(2), **{index: images(2)[0] for index in range(1, COUNT)}}  # every image is the first one
    answers = {0: answer(0, "other", 0)} | {index: answer(index, "other", 15, 0) for index in range(1, COUNT)}
    verdicts = dict.fromkeys(range(COUNT), verdict)
    encoder = Encoder(encoder_folder("bundled:clip"))
    found = quality_of(rows(), answers, (cached, noise), (verdicts, verdicts), encoder)
    assert found["copying"] is not None
    assert found["copying"]["value"] == pytest.approx(1.0, abs=0.2)
    assert found["copying"]["holds"] is False
    assert found["variety"] is not None
    assert (found["variety"]["count"], found["variety"]["value"]) == (1, pytest.approx(0.0, abs=1e-6))
    assert found["fidelity"] is not None
    assert (found["fidelity"]["value"], found["fidelity"]["holds"]) == (1.0, True)
    edits = {index: answer(index, "edit", 15, 0) for index in range(1, COUNT)}
    assert quality_of(rows(), edits, (cached, noise), (verdicts, verdicts), encoder)["copying"] is None


def test_hits_are_counted_by_relation_and_k() -> None:
    answers = {0: answer(0, "topic", 0), 1: answer(1, "edit", 15, 0), 2: answer(2, "edit", 25, 0)}
    found = by_relation(answers)
    assert found["edit"]["k_of_t"] == {"15 of 50": 1, "25 of 50": 1}
    assert (found["edit"]["hit_rate"], found["topic"]["hit_rate"]) == (1.0, 0.0)
    assert found["edit"]["steps_run"] == 30
    assert similarity_by_k(answers) == pytest.approx({"15 of 50": 0.915, "25 of 50": 0.925})
    figures = {"by_relation": found, "similarity_by_k": similarity_by_k(answers), "quality": {"variety": None}}
    assert "| edit | 2 | 1 | 30 | 15 of 50: 1, 25 of 50: 1 |" in report(figures)
