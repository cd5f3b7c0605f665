"""A clip that goes on after another job's last frame, and a clip whose first frame is another job's image."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from services.cli.app import app
from services.gpu_worker.families import load_family
from services.gpu_worker.jobs.codecs import decode_png
from shared.client import AsyncClient
from shared.domain.errors import InvalidRequestError, JobFailedError, NotFoundError
from shared.domain.types import PlanSource
from shared.models import find_card
from tests.flows.conftest import Make
from tests.flows.house import house
from tests.flows.reuse.test_clips import clips
from tests.redraw import redraw

__all__ = ["clips"]
VIDEO: dict[str, Any] = {"modality": "video", "steps": 10}


async def test_a_clip_goes_on_after_its_last_frame_again_and_again(make: Make, clips: Path, tmp_path: Path) -> None:
    async with house(make(video=str(clips), reuse_rules="paper", batch_invariant=2)) as home:
        first = await home.client.generate_video("a red fox runs", seed=7, steps=10)
        fields: dict[str, Any] = {"seed": 8, "steps": 10, "continue_from": first.job.id}
        second = await home.client.generate_video("a red fox runs", **fields)
        await home.settled(second)
        assert (second.plan.source, second.steps_run, second.job.request.frames) == (PlanSource.NOISE, 10, 4)
        lead = second.plan.lead
        assert lead is not None
        assert (lead.job_id, lead.frames, lead.held) == (first.job.id, 4, 1)
        assert second.frames.shape == (second.job.frames, 16, 16, 3) == (7, 16, 16, 3)
        assert np.array_equal(second.frames[:4], first.frames)
        row = await home.backends.catalog.jobs.get(second.job.id)  # request and plan determine the new frames
        blob = await home.backends.blobs.get(lead.key)
        family = load_family(find_card(str(clips)), batch_invariant=2)
        assert np.array_equal(redraw(family, row.request, row.plan, blob).pixels[1:], second.frames[4:])

        third = await home.client.generate_video("a blue fox", **{**fields, "continue_from": second.job.id}, frames=8)
        assert third.plan.lead is not None
        assert (third.plan.lead.frames, third.plan.lead.held, third.job.frames) == (7, 2, 13)
        assert np.array_equal(third.frames[:7], second.frames)

        again = await home.client.generate_video("a red fox runs", **fields)
        assert (again.plan.source, again.png, again.job.frames) == (PlanSource.EXACT, second.png, 7)
        near = await home.client.generate_video("a red fox runs", seed=8, steps=10, variation="same")
        assert near.plan.entry_id in ("", first.job.id), "states of a continued clip start no other"
        smooth = await home.client.generate_video("a red fox runs", **fields, strength=0.5)
        assert (smooth.plan.source, smooth.plan.start_step, smooth.job.frames) == (PlanSource.IMAGE, 5, 7)
        assert np.array_equal(smooth.frames[:4], first.frames)
        (planned,) = await home.client.plan("a red fox", **VIDEO, continue_job=first.job.id)
        assert (planned.job.frames, "after the last 1 frame of job" in planned.job.plan.reason) == (7, True)

        words = ["generate", "--video", "a fox", "--continue", first.job.id, "--steps", "4", "--target"]
        out = tmp_path / "fox.png"
        said = await asyncio.to_thread(CliRunner().invoke, app, [*words, home.process.address, "-o", str(out)])
        assert said.exit_code == 0, said.output
        assert f"Started from noise after 4 frames of job {first.job.id}: 4 steps" in said.output
        assert "16x16, 7 frames" in said.output
        assert np.array_equal(decode_png(out.read_bytes())[:4], first.frames)


async def test_an_image_is_the_first_frame_and_a_clip_of_equal_length_starts_every_frame(
    make: Make, clips: Path
) -> None:
    async with house(make(video=str(clips))) as home:
        image = await home.client.generate("a red fox", seed=7, steps=10)
        pixels = Image.fromarray(decode_png(image.png)).resize((16, 16), Image.Resampling.LANCZOS)
        for strength, source, start in ((0.5, PlanSource.IMAGE, 5), (1.0, PlanSource.NOISE, 0)):
            clip = await home.client.generate_video("a fox", steps=10, from_job=image.job.id, strength=strength)
            assert (clip.plan.source, clip.plan.start_step, clip.job.frames) == (source, start, 4)
            assert np.array_equal(clip.frames[0], np.asarray(pixels))
            assert not np.array_equal(clip.frames[1], clip.frames[0])
        other = await home.client.generate_video("a blue fox", steps=10, from_job=clip.job.id, strength=0.5)
        assert (other.plan.source, other.plan.lead, other.job.frames) == (PlanSource.IMAGE, None, 4)
        assert not np.array_equal(other.frames[0], clip.frames[0])
        whole = await home.client.generate_video("a fox", steps=2, continue_from=clip.job.id)
        with pytest.raises(InvalidRequestError, match="from_job: must be the job of an image, or a clip of 4 frames"):
            await home.client.generate_video("a fox", steps=2, from_job=whole.job.id)


async def test_the_pixels_of_the_whole_clip_are_limited(make: Make) -> None:
    settings = make(large="noop:?name=large", video="noop:?name=clips&frames=4", max_pixels=22_000)
    async with house(settings) as home:
        clip = await home.client.generate("a fox", **VIDEO)
        named = {**VIDEO, "continue_job": clip.job.id}
        assert await home.client.plan("a fox", **(named | {"frames": 2}))
        said = (
            r"^continue_job: frames × pixels of the whole clip must be at most 22000 \(max_pixels\) \(got '6 × 64x64'\)"
        )
        with pytest.raises(InvalidRequestError, match=said):
            await home.client.plan("a fox", **(named | {"frames": 3}))


async def test_a_clip_that_cannot_go_on_is_refused(make: Make) -> None:
    settings = make(
        large="noop:?name=large", video="noop:?name=clips&frames=4", max_attempts=1, max_pixel_steps=220_000
    )
    async with house(settings) as home, AsyncClient(home.process.address, tenant="acme", retry_s=0.0) as stranger:
        clip = await home.client.generate("a fox", **VIDEO, scope="private", user="ana")
        named = {**VIDEO, "continue_job": clip.job.id, "user": "ana"}
        refused: tuple[tuple[AsyncClient, dict[str, Any], type[Exception], str], ...] = (
            (home.client, {"from_job": clip.job.id}, InvalidRequestError, "name from_job or continue_job, not both"),
            (home.client, {"modality": "image"}, InvalidRequestError, "continue_job: is for clips alone"),
            (home.client, {"frames": 1}, InvalidRequestError, "frames: must be above 1 to continue a clip"),
            (
                home.client,
                {"width": 32, "height": 32},
                InvalidRequestError,
                "size: must be 64x64, the size of the clip",
            ),
            (home.client, {"frames": 3}, InvalidRequestError, r"of the whole clip must be at most 220000"),
            (home.client, {"continue_job": "01jd"}, NotFoundError, "continue_job '01jd': no such job"),
            (home.client, {"user": "ben"}, NotFoundError, "continue_job '.*': no such job"),
            (stranger, {}, NotFoundError, "continue_job '.*': no such job"),
        )
        for client, fields, kind, said in refused:
            with pytest.raises(kind, match=said):
                await client.plan("a fox", **(named | fields))
        longer = await home.client.generate("a fox", **(named | {"frames": 2}))
        assert longer.job.frames == 5
        row = await home.backends.catalog.jobs.get(clip.job.id)
        await home.backends.blobs.delete([row.result.picture_key])
        lost = rf"continue_job '{clip.job.id}': its result cannot be used: blob .* not there"
        with pytest.raises(JobFailedError, match=lost):
            await home.client.generate("a wolf", **(named | {"frames": 2}))
