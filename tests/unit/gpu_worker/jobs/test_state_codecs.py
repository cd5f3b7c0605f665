"""Captured states: each in the codec of its K, as many as the image's room takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.gpu_worker.jobs import residual
from services.gpu_worker.jobs.residual import is_same_generator
from shared.domain.types import Job, Plan, PlanSource
from shared.models.state_codecs import KIND, CodecChoice, CodecLevel, choice_to_json
from tests.unit.gpu_worker.worker import WorkerBench, running_worker

LEVELS = (CodecLevel(10, 3, "residual-4x4"), CodecLevel(10, 6, "residual"))


async def drawn(bench: WorkerBench, *steps: int) -> list[tuple[int, str]]:
    """Generate an image of T = 10; return the stored states with their codecs."""
    job: Job = await bench.draw(Plan(PlanSource.NOISE, bench.model, capture_steps=steps))
    assert job.result is not None, job.error
    for state in job.result.captured:
        assert len(await bench.blobs.get(state.key, state.sha256)) == state.bytes
    return [(state.step, state.codec) for state in job.result.captured]


async def profiled(bench: WorkerBench) -> None:
    card = bench.service._place.card
    choice = CodecChoice(card.name, card.weights_hash, LEVELS)
    await bench.backends.catalog.profiles.put(KIND, card.name, card.weights_hash, choice_to_json(choice))


async def test_each_k_has_the_codec_that_was_measured_for_it(tiny_folder: Path, tmp_path: Path) -> None:
    async with running_worker(tmp_path, str(tiny_folder / "large")) as bench:
        await profiled(bench)
        found = await drawn(bench, 1, 3, 5, 6, 7)
    assert found == [(1, "residual-4x4"), (3, "residual-4x4"), (5, "residual"), (6, "residual"), (7, "fp16")]


async def test_the_first_states_fill_the_room_of_an_image(tiny_folder: Path, tmp_path: Path) -> None:
    async with running_worker(tmp_path, str(tiny_folder / "large"), capture_fp16_states=2) as bench:
        assert await drawn(bench, 1, 3, 5, 7, 9) == [(1, "fp16"), (3, "fp16")]
    async with running_worker(tmp_path, str(tiny_folder / "large"), capture_fp16_states=2) as bench:
        await profiled(bench)
        assert [step for step, _ in await drawn(bench, 1, 3, 5, 7, 9)] == [1, 3, 5, 7]
    async with running_worker(tmp_path, str(tiny_folder / "large"), state_codec="int8", capture_fp16_states=1) as bench:
        assert await drawn(bench, 1, 3, 5, 7, 9) == [(k, "int8") for k in (1, 3, 5, 7, 9)]


async def test_with_another_generator_states_are_fp16(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_same_generator.cache_clear()
    monkeypatch.setattr(residual, "DRAWN", (1.0, 2.0, 3.0, 4.0))
    try:
        async with running_worker(tmp_path, str(tiny_folder / "large")) as bench:
            await profiled(bench)
            assert await drawn(bench, 1, 5) == [(1, "fp16"), (5, "fp16")]
    finally:
        is_same_generator.cache_clear()
