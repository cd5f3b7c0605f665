"""A model whose card lists several T: the plan chooses T, and every service and display names it."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

from PIL import Image

from services.cli.display.words import where_it_started
from shared.client import Picture
from shared.client.image_file import write
from shared.client.views import Progress
from shared.domain.types import PlanSource
from shared.models.card_lookup import read_card
from shared.models.k_table import Cell, KTable, Level, named_table, table_file, table_to_json
from shared.runtime.settings import Settings
from tests import tiny_families
from tests.flows.conftest import Make
from tests.flows.house import House, house

OF_FIVE = KTable((Level(1, -1.0), Level(2, 0.999)), steps=5, noise=Cell(0, -1.0, 1.0, 400, 1.0, 0.99, safe=True))


def listing(make: Make, tiny: Path, folder: Path) -> Settings:
    """Settings on a copy of the tiny model whose card lists 5 and 50, and whose 5 steps keep the quality of 50."""
    shutil.copytree(tiny / "large", folder)
    (folder / "card.json").write_text(json.dumps({"name": "few", "auto_steps": [5, 50]}))
    table = replace(named_table(OF_FIVE), weights_hash=read_card(folder / "card.json").weights_hash)
    (folder / table_file(table, 5)).write_text(json.dumps(table_to_json(table)))
    settings = make(
        large=str(folder), image_tier="off", predictor="always", reuse_rules="paper", capture_steps=(10, 20, 25)
    )
    return settings.model_copy(update={"progress_per_s": 1e6})  # each step reports, however fast it is


async def ask(it: House, prompt: str, **fields: object) -> tuple[Picture, list[int]]:
    """The picture, and every T that its progress stated."""
    stated = []
    async for event in it.client.generate_stream(prompt, user="ada", previews=True, **fields):  # type: ignore[arg-type]
        if isinstance(event, Progress):
            stated.append(event.steps)
        elif isinstance(event, Picture):
            await it.settled(event)
            return event, stated
    raise AssertionError("the stream ended without a picture")


async def test_the_plan_chooses_t_and_everyone_states_it(make: Make, tiny: Path, tmp_path: Path) -> None:
    async with house(listing(make, tiny, tmp_path / "few")) as it:
        first, stated = await ask(it, "a red fox", seed=1)
        assert (first.plan.source, first.steps_run, {*stated}) == (PlanSource.NOISE, 5, {5})
        assert (first.job.request.steps, first.job.request.steps_auto) == (50, True)
        entry = await it.backends.catalog.entries.get(first.job.id)
        assert (entry.compat.steps, [state.step for state in entry.latents]) == (5, [1, 2])

        hit, stated = await ask(it, "a red fox", seed=2)
        assert (hit.plan.source, hit.plan.start_step, hit.steps_run, {*stated}) == (PlanSource.LATENT, 2, 3, {5})
        assert where_it_started(hit).startswith("Started after step 2 of 5")
        write(tmp_path / "hit.png", hit.png, hit.job, hit.model)
        with Image.open(io.BytesIO((tmp_path / "hit.png").read_bytes())) as image:
            assert image.info["steps"] == "5"

        named, stated = await ask(it, "a red fox", seed=3, steps=50)
        assert (named.plan.start_step, named.steps_run) == (20, 30)  # the state after 2 of 5
        assert {*stated} == {50}
        repeat, _ = await ask(it, "a red fox", seed=2)
        assert (repeat.plan.source, repeat.steps_run, repeat.plan.run_steps(50)) == (PlanSource.EXACT, 0, 5)

        await it.backends.blobs.delete([state.key for state in entry.latents])
        keys = [key for one in (hit, named) for key in await latents_of(it, one)]
        await it.backends.blobs.delete(keys)
        lost, _ = await ask(it, "a red fox", seed=4)
        assert (lost.plan.source, lost.steps_run) == (PlanSource.NOISE, 5)
        assert lost.plan.degraded


async def test_the_plan_chooses_t_of_a_clip(make: Make, tmp_path: Path) -> None:
    """The card of a video model needs what a card of images needs: auto_steps, and a table with a safe noise cell."""
    folder = tiny_families.save(tmp_path / "clips", "animatediff", channels=(16,))
    lengths = {"default": 4, "most": 8, "window": 4, "stride": 2, "fps": 4}
    size = {"width": 16, "height": 16}
    card = {"name": "clips", "default_size": size, "default_steps": 10, "auto_steps": [5, 10], "unprompted": 0.1}
    (folder / "card.json").write_text(json.dumps({**card, "sizes": {"min_px": 16, "max_px": 64}, "frames": lengths}))
    known = read_card(folder / "card.json")
    assert known.auto_steps == (5, 10)
    for table, name in ((replace(OF_FIVE, steps=10), ()), (OF_FIVE, (5,))):
        measured = replace(named_table(table), weights_hash=known.weights_hash)
        (folder / table_file(measured, *name)).write_text(json.dumps(table_to_json(measured)))
    settings = make(large="noop:", video=str(folder), predictor="always", reuse_rules="paper", batch_invariant=2)
    async with house(settings.model_copy(update={"progress_per_s": 1e6})) as it:
        first, stated = await ask(it, "a red fox runs", modality="video", seed=1)
        assert (first.plan.source, first.steps_run, {*stated}) == (PlanSource.NOISE, 5, {5})
        assert (first.job.request.steps, first.job.request.steps_auto, first.job.request.frames) == (10, True, 4)
        assert [one.prompted_from for one in first.plan.may_run] == [1]
        repeat, _ = await ask(it, "a red fox runs", modality="video", seed=1, steps="auto")
        assert (repeat.plan.source, repeat.png) == (PlanSource.EXACT, first.png)
        hit, stated = await ask(it, "a red fox runs", modality="video", seed=2)
        assert (hit.plan.source, hit.plan.start_step, hit.steps_run, {*stated}) == (PlanSource.LATENT, 2, 3, {5})
        longer, _ = await ask(it, "a red fox runs", modality="video", seed=1, frames=8)
        assert (longer.plan.source, longer.steps_run) == (PlanSource.NOISE, 5)
        named, stated = await ask(it, "a red fox runs", modality="video", seed=1, steps=10, cache="off")
        assert (named.steps_run, {*stated}, named.job.request.steps_auto) == (10, {10}, False)
        (planned,) = await it.client.plan("a boat", modality="video", steps="auto")
        assert planned.job.plan.run_steps(planned.job.request.steps) == 5


async def latents_of(it: House, picture: Picture) -> list[str]:
    """The keys of the latents that the picture left."""
    entry = await it.backends.catalog.entries.get(picture.job.id)
    return [state.key for state in entry.latents]
