"""A clip starts from the object of one clip and the background of another, once both are segmented (FlexCache §4.2)."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import grpc
import numpy as np
import pytest
from rich.console import Console

from protos import text_extractor_pb2 as pb
from protos import text_extractor_pb2_grpc as pb_grpc
from services.cli.display.masks import pair_masks
from services.cli.display.words import candidates_table, job_sheet, where_it_started
from services.gpu_worker.jobs.codecs import decode_png
from shared.client import Picture
from shared.domain.masks import mask_key, pack
from shared.domain.messages import VideoSegmented
from shared.domain.parts import Parts
from shared.domain.types import IndexFilter, Plan, PlanSource
from shared.models.k_table import FIG_10, Level, named_table, table_file, table_to_json
from shared.service import Context
from tests import tiny_clips
from tests.flows.conftest import Make
from tests.flows.house import House, house
from tests.tiny_segmenters import tiny_clipseg

GRID = (2, 8, 8)
MISSING = "masks are not in the cache"
FOX, DOG, BOTH = "a red fox in the snow", "a brown dog in a forest", "a red fox in a forest"


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose latents start the same prompt alone: a random encoder finds all prompts similar."""
    folder = tiny_clips.build(tmp_path_factory.mktemp("models"), 10, tiny_clips.SMALL) / tiny_clips.CLIPS
    table = named_table(replace(FIG_10, levels=(Level(5, 0.9999),)))
    (folder / table_file(table)).write_text(json.dumps(table_to_json(table)))
    return folder


async def segment(home: House, clip: Picture, left: bool) -> str:
    """Write the masks of a clip as a segmenter does, and wait until its entry names them. Return the blob's key."""
    thing = np.zeros(GRID, bool)
    thing[..., :4] = left
    thing[..., 4:] = not left
    data = pack(thing, ~thing)
    key = mask_key(clip.job.id, f"{left:064d}")
    event = VideoSegmented(clip.job.id, key, await home.backends.blobs.put(key, data), len(data))
    for _ in range(2):
        await home.backends.bus.publish(event)
    async with asyncio.timeout(20):
        while (await home.backends.catalog.entries.get(clip.job.id)).mask is None:
            await asyncio.sleep(0.01)
    return key


async def planned(home: House, missing: bool) -> None:
    """Wait until the retriever's copies of the entries are as the maintainer left them."""
    async with asyncio.timeout(60):
        while True:
            (one,) = await home.client.plan(
                BOTH, modality="video", seed=3, steps=10, frames=2, guidance=1.0, cache="read"
            )
            if any(MISSING in candidate.reason for candidate in one.job.plan.candidates) == missing:
                return
            await asyncio.sleep(0.05)


async def clip(home: House, prompt: str, seed: int, **fields: Any) -> Picture:
    return await home.generate(prompt, modality="video", seed=seed, frames=2, guidance=1.0, **fields)


def shown(table: Any) -> str:
    console = Console(width=400)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


async def test_a_clip_from_two_others(make: Make, clips: Path) -> None:
    rules: dict[str, Any] = {"reuse_bound": "flexcache", "reuse_rules": "paper", "batch_invariant": 2}
    settings = make(video=str(clips), extract_timeout_s=10.0, **rules)
    async with house(settings) as home:
        fox, dog = await clip(home, FOX, 1), await clip(home, DOG, 2)
        assert fox.plan.parts == Parts("a red fox", "in the snow")
        assert fox.timings.extract_s > 0
        before = await clip(home, BOTH, 3, cache="read")
        assert before.plan.source is PlanSource.NOISE
        assert any(MISSING in one.reason for one in before.plan.candidates)
        keys = [await segment(home, fox, True), await segment(home, dog, False)]
        await planned(home, missing=False)

        made = await clip(home, BOTH, 3, cache="read")
        plan = made.plan
        assert (plan.source, plan.start_step) == (PlanSource.STITCHED, 5), plan.reason
        assert [one.entry_id for one in plan.sources] == [fox.job.id, dog.job.id]
        assert [one.mask_key for one in plan.sources] == keys
        assert plan.roots == (fox.job.id, dog.job.id)
        assert plan.parts == Parts("a red fox", "in a forest")
        assert made.steps_run == 5
        assert decode_png(made.png).shape == (2, 16, 16, 3)
        assert made.png != before.png
        again = await clip(home, BOTH, 3, cache="read", quality="clips")
        assert again.png == made.png  # request and plan determine the clip

        sentence = where_it_started(made)
        assert "from the object of “a red fox in the snow” (similarity 1.000)" in sentence
        assert "over the background of “a brown dog in a forest” (1.000)" in sentence
        why = shown(candidates_table(plan))
        assert "pair" in why
        assert "a red fox in the snow + a brown dog in a forest" in why
        sheet = shown(job_sheet(made))
        assert "object “a red fox” · background “in a forest”" in sheet

        # the stitched clip is an entry of two roots, found by its parts
        kept = await clip(home, BOTH, 4)
        entry = await home.backends.catalog.entries.get(kept.job.id)
        assert (entry.root_ids, entry.parts) == ((fox.job.id, dog.job.id), Parts("a red fox", "in a forest"))
        row = await home.backends.catalog.jobs.get(kept.job.id)
        for name, data in row.vectors.items():
            vector = np.frombuffer(data, np.float32)
            hits = await home.backends.index.search(name, vector, IndexFilter(), 9)
            assert kept.job.id in {hit.entry_id for hit in hits if hit.similarity > 0.999}

        # a corrupt mask is a hole: the job succeeds, and the entry waits for other masks
        await home.backends.blobs.put(keys[1], b"garbage")
        lost = await clip(home, BOTH, 5, cache="read")
        assert lost.plan.source is PlanSource.NOISE
        assert "generated from noise" in lost.plan.degraded[-1]
        async with asyncio.timeout(20):
            while (await home.backends.catalog.entries.get(dog.job.id)).mask is not None:
                await asyncio.sleep(0.01)
        await planned(home, missing=True)
        after = await clip(home, BOTH, 6, cache="read")
        assert (after.plan.source, after.plan.degraded) == (PlanSource.NOISE, ())


async def masked(home: House, *made: Picture) -> None:
    """Wait until the entries of these clips have masks."""
    async with asyncio.timeout(60):
        for one in made:
            while (await home.backends.catalog.entries.get(one.job.id)).mask is None:
                await asyncio.sleep(0.02)


async def test_the_segmenter_of_the_stack_makes_the_masks(make: Make, clips: Path, tmp_path: Path) -> None:
    """No hand makes masks or events here: a finished clip is segmented, and the next one is stitched."""
    segmenter = {"segmenter": str(tiny_clipseg(tmp_path / "clipseg")), "segment_threshold": 0.0}
    async with house(make(video=str(clips), reuse_bound="flexcache", **segmenter)) as home:
        fox, dog = await clip(home, FOX, 1, user="ana"), await clip(home, DOG, 2, user="ben")
        await masked(home, fox, dog)
        made = await clip(home, BOTH, 3, user="ana")
        plan = made.plan
        assert (plan.source, plan.start_step, plan.degraded) == (PlanSource.STITCHED, 5, ()), plan.reason
        assert [one.entry_id for one in plan.sources] == [fox.job.id, dog.job.id]
        assert plan.parts == Parts("a red fox", "in a forest")
        masks = await pair_masks(home.backends.blobs, plan)
        assert masks is not None
        assert masks.taken.shape == (*GRID, 3)
        await masked(home, made)  # what was stitched is segmented too

        assert (await clip(home, FOX, 1, user="ana")).plan.source is PlanSource.EXACT
        assert await home.backends.catalog.jobs.to_segment() == []  # it has no latents, and so no masks


async def test_without_a_table_of_pairs_the_reason_names_none(make: Make, clips: Path) -> None:
    async with house(make(video=str(clips), reuse_rules="paper")) as home:
        await clip(home, FOX, 1)
        made = await clip(home, BOTH, 2)
        assert made.plan.parts == Parts("a red fox", "in a forest")
        assert "pair" not in made.plan.reason
        assert (await home.generate(BOTH, seed=1)).plan.parts is None


class Extractor(pb_grpc.TextExtractorServiceServicer):
    """An extractor in some trouble."""

    name: ClassVar[str] = "text_extractor"
    ports: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, how: str) -> None:
        self.how, self.asked = how, 0

    async def start(self, context: Context) -> None: ...
    async def drain(self) -> None: ...
    async def stop(self) -> None: ...

    def register(self, server: grpc.aio.Server) -> str:
        pb_grpc.add_TextExtractorServiceServicer_to_server(self, server)
        return pb.DESCRIPTOR.services_by_name["TextExtractorService"].full_name

    async def Extract(self, request: pb.ExtractRequest, context: Any) -> pb.ExtractResponse:  # noqa: N802
        self.asked += 1
        if self.how == "late":
            await asyncio.sleep(5.0)
        return pb.ExtractResponse(parts=[] if self.how == "wrong" else [pb.Parts()])


CLIPS = "noop:?name=clips"


async def plan_of(home: House, **fields: Any) -> Plan:
    """The plan that a request would get now."""
    (view,) = await home.client.plan(FOX, seed=1, timeout_s=60.0, **fields)
    return view.job.plan


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("away", "text_extractor: "),
        ("late", "text_extractor: "),
        ("wrong", "text_extractor: "),
        ("unsure", ""),  # no note: nothing failed, and the missing parts say it
    ],
)
async def test_an_extractor_in_trouble_costs_the_parts_alone(make: Make, how: str, said: str) -> None:
    extractor = Extractor(how)
    settings = make(video=CLIPS, extract_timeout_s=0.1)
    plus = [] if how == "away" else [extractor]
    async with house(settings, without=["text_extractor"], plus=plus) as home:
        made = await plan_of(home, modality="video")
        assert made.parts is None
        assert any(one.startswith(said) for one in made.degraded) if said else not made.degraded
        assert not [one for one in (await plan_of(home)).degraded if "text_extractor" in one]
        named = await plan_of(home, modality="video", cache="off")
        assert not [one for one in named.degraded if "text_extractor" in one]
        if how == "wrong":
            async with asyncio.timeout(60):
                seeds = itertools.count()  # admitted requests alone move a breaker
                while "failed repeatedly" not in "".join(made.degraded):
                    asked = extractor.asked
                    made = (await home.client.generate_video(FOX, seed=next(seeds), steps=2, frames=2)).plan
            assert extractor.asked == asked  # not called for a while


@pytest.mark.parametrize("setting", [{"decouple": "off"}, {"extractor": ""}])
async def test_switched_off_nothing_is_extracted(make: Make, setting: dict[str, str]) -> None:
    extractor = Extractor("unsure")
    async with house(make(video=CLIPS, **setting), without=["text_extractor"], plus=[extractor]) as home:
        made = await plan_of(home, modality="video")
        assert made.parts is None
        assert not [one for one in made.degraded if "text_extractor" in one]
        assert extractor.asked == 0


async def test_images_are_decoupled_by_the_setting(make: Make) -> None:
    async with house(make(decouple="all", extract_timeout_s=30.0)) as home:
        assert (await plan_of(home)).parts == Parts("a red fox", "in the snow")
