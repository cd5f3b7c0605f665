"""The commands on the whole of Afterimage: what a newcomer types first."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shlex
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner, Result

from protos import gateway_pb2
from services.cli.app import app
from services.cli.demo import command as demo
from services.cli.embedded import announced
from services.cli.following import draw
from services.gateway.service import GatewayService
from shared.domain.errors import ConfigurationError
from shared.domain.types import JobState
from shared.runtime.animated_png import decode
from shared.runtime.telemetry import configure_logging
from shared.service import running
from tests import tiny
from tests.flows.conftest import Make
from tests.flows.house import SLOW, house


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tiny: Path, tmp_path: Path) -> None:
    """Set the environment of a user who named models of their own.

    A test's services are in its own process, where their log lines would be in what a command prints."""
    configure_logging("error")
    for name, value in {"LARGE": tiny / "large", "ENCODER": tiny / "clip", "TORCH_THREADS": 1}.items():
        monkeypatch.setenv(f"AFTERIMAGE_{name}", str(value))
    monkeypatch.setenv("AFTERIMAGE_LISTEN", "127.0.0.1:1")  # nothing is there
    monkeypatch.chdir(tmp_path)


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, f"{arguments}: {result.output} {result.exception!r}"
    return result


def test_generate_starts_an_instance_when_none_runs_and_the_next_one_finds_its_cache(tmp_path: Path) -> None:
    first = run("generate", "a red fox", "--steps", 10, "--seed", 1, "--data-dir", "data", "-o", "deep/fox.png")
    assert "starting Afterimage in this process" in first.output
    assert "Started from noise: 10 steps" in first.output
    assert "created the folder deep" in first.output
    assert "--fresh-noise" not in first.output
    with Image.open(tmp_path / "deep" / "fox.png") as picture:
        assert picture.size == (64, 64)
    again = ("generate", "a red fox!", "--steps", 10, "--seed", 2, "--data-dir", "data", "--variation", "same", "--why")
    planned = run(*again, "--dry-run")
    assert re.search(
        r"Would start after step [1-5] of 10 from “a red fox”.*\n.*Candidates of the plan", planned.output, re.S
    )
    assert "dry run, nothing generated  (64x64, seed 2)" in planned.output
    second = run(*again)
    assert re.search(r"Started after step [1-5] of 10 from “a red fox”", second.output)
    assert "Candidates of the plan" in second.output
    assert "For a more different image: --variation new" in second.output
    assert "created the folder" not in second.output
    assert len(list(tmp_path.glob("*.png"))) == 1
    run("generate", "a red fox", "--steps", 10, "--seed", 1, "--data-dir", "data", "-o", "fox.webp")
    with Image.open("fox.webp") as picture:
        assert picture.format == "WEBP"
    ended = run("generate", "a red fox", "--steps", 10, "--seed", 1, "--data-dir", "data", "-o", "fox")
    assert "fox  (PNG, 64x64, seed 1, " in ended.output
    job = ended.output.strip().removesuffix(")").rpartition(" ")[2]
    named = ("--from", job, "--strength", 0.4, "--steps", 10, "--cache", "read", "--data-dir", "data", "-o", "wolf.png")
    assert (
        f"Started after step 6 of 10 from job {job} (“a red fox”): 4 steps in"
        in run("generate", "a wolf", *named).output
    )
    of_file = run("generate", "a wolf", "--from", "deep/fox.png", *named[2:], "--dry-run").output
    assert re.search(r"Would start after step 6 of 10 from job \w+ \(“a red fox”\)", of_file)
    Image.new("RGB", (64, 64)).save("blank.png")
    refused = CliRunner().invoke(app, ["generate", "a wolf", "--from", "blank.png", "--data-dir", "data"])
    assert "a file that Afterimage wrote" in str(refused.exception)
    too_large = CliRunner().invoke(app, ["generate", "a wolf", "--size", "64x1000", "--data-dir", "data"])
    assert "size: model 'large' generates" in str(too_large.exception)
    assert "starting Afterimage" not in too_large.output, "the card states the limit; no start is needed"

    several = run("generate", "a boat", "-n", 2, "--steps", 2, "--cache", "off", "--data-dir", "data", "-o", "boat.jpg")
    assert re.search(r"boat-1.jpg  \(.*\n.*\n.*\n.*boat-2.jpg  \(64x64", several.output)
    assert {path.name for path in tmp_path.glob("boat*")} == {"boat-1.jpg", "boat-2.jpg"}

    stats = run("cache", "stats", "--data-dir", "data")  # nobody runs: the cache is opened for the question
    assert re.match(r"2 entries, \d+ states", stats.stdout)
    assert stats.stderr == f"asking the cache in {tmp_path / 'data'} (nothing serves it now)\n"
    purged = run("cache", "purge", "--all", "--yes", "--data-dir", "data")
    assert "purged 2 entries" in purged.output
    assert "0 entries, 0 states" in run("cache", "stats", "--data-dir", "data").output


async def test_commands_find_the_process_that_works_in_a_data_directory(make: Make) -> None:
    settings = make(large="noop:")
    where = ("--data-dir", settings.data_dir)
    async with house(settings) as it:
        with announced(it.process, settings):
            drawn = await asyncio.to_thread(run, "generate", "a red fox", "--steps", 2, *where)
            assert "starting Afterimage" not in drawn.output
            listed = await asyncio.to_thread(run, "jobs", "list", *where)
            job = (await it.client.list_jobs())[0][0].job
            assert job.id in listed.output
            shown = await asyncio.to_thread(run, "jobs", "show", job.id, *where)
            assert "a red fox" in shown.output
            assert f"{job.request.seed} (random)" in shown.output
            again = await asyncio.to_thread(run, "jobs", "show", job.id, "--out", "kept/fox.png", *where)
            assert "created the folder kept" in again.output
            png = (await it.client.get_picture(job.id)).png
            with Image.open("kept/fox.png") as kept, Image.open(io.BytesIO(png)) as drawn_png:
                assert kept.tobytes() == drawn_png.tobytes()
                assert {"prompt": "a red fox", "job": job.id}.items() <= kept.info.items()
            none = await asyncio.to_thread(run, "jobs", "list", "--state", "failed", *where)
            assert "no jobs that are failed" in none.output
            await asyncio.to_thread(run, "generate", "a blue fox", "--steps", 2, *where)
            page = await asyncio.to_thread(run, "jobs", "list", "--state", "succeeded", "--limit", 1, *where)
            (more,) = re.findall(r"^more: afterimage (.+)$", page.output, re.MULTILINE)
            words = shlex.split(more)
            assert {"--state", "--data-dir", "--limit"} <= set(words)
            assert job.id in (await asyncio.to_thread(run, *words)).output
            words = ["jobs", "cancel", job.id, *map(str, where)]
            late = await asyncio.to_thread(CliRunner().invoke, app, words)
            assert late.exit_code == 1
            assert str(late.exception) == f"{job.id} had already succeeded: nothing was cancelled"
            await it.settled(await it.client.get_picture(job.id))
            inspected = await asyncio.to_thread(run, "cache", "inspect", *where)
            assert "a red fox" in inspected.output


async def test_a_clip_leaves_previews_and_is_written_again_with_the_same_options(make: Make, tmp_path: Path) -> None:
    settings = make(large="noop:", video="noop:?name=clips&step_ms=40", progress_per_s=60)
    where = ("--data-dir", settings.data_dir)
    async with house(settings) as it:
        with announced(it.process, settings):
            clip = ("generate", "a red fox", "--video", "--frames", 3, "--steps", 6, "-o", "fox.gif", "--scale", 2)
            await asyncio.to_thread(run, *clip, "--previews", "seen", *where)
            previews = sorted((tmp_path / "seen").iterdir())
            assert [path.name for path in previews] == [f"step-{step:04}.png" for step in range(1, 6)]
            with Image.open(previews[0]) as preview:
                assert getattr(preview, "n_frames", 1) == 3
            full = await asyncio.to_thread(CliRunner().invoke, app, [*map(str, clip), "--previews", "seen"])
            assert str(full.exception) == "previews: must be a new or empty folder (got 'seen')"
            job = (await it.client.list_jobs())[0][0].job
            show = ("jobs", "show", job.id, *where)
            await asyncio.to_thread(
                run, *show, "-o", "again.gif", "--scale", 2, "--poster", "p.png", "--strip", "s.png"
            )
            assert (tmp_path / "again.gif").read_bytes() == (tmp_path / "fox.gif").read_bytes()
            assert all((tmp_path / name).read_bytes() for name in ("p.png", "s.png"))
            await asyncio.to_thread(run, "generate", "a red fox", "--steps", 2, *where)
            image = (await it.client.list_jobs())[0][0].job
            refused = {
                (*show, "--fps", 4): "fps: needs --out, the file of the clip (got '4.0')",
                (*show, "-o", "a.gif", "--fps", "nan"): "fps: must be a number from 0.1 to 120 (got 'nan')",
                ("jobs", "show", image.id, *where, "-o", "a.png", "--scale", 2): (
                    f"scale: is for clips; {image.id} is an image (got '2')"
                ),
            }
            for command, said in refused.items():
                result = await asyncio.to_thread(CliRunner().invoke, app, [str(word) for word in command])
                assert str(result.exception) == said


async def test_a_file_of_a_clip_or_an_image_names_its_job(make: Make) -> None:
    async with house(make(large="noop:?name=large", video="noop:?name=clips&frames=4")) as it:
        where = ("--steps", 4, "--target", it.process.address)
        for name in ("fox.png", "fox.jpg"):
            await asyncio.to_thread(run, "generate", "a fox", "--seed", 1, "-o", name, *where)
            ended = await asyncio.to_thread(run, "generate", "a wolf", "--from", name, "-o", "wolf.png", *where)
            assert re.search(r"Started after step 1 of 4 from job \w+ \(“a fox”\)", ended.output)
        await asyncio.to_thread(run, "generate", "--video", "a fox", "--seed", 1, "-o", "fox.mp4", *where)
        repeat = await asyncio.to_thread(run, "generate", "--video", "a fox", "--seed", 1, "-o", "fox.webm", *where)
        assert "was generated before: its clip is returned." in repeat.output
        for name in ("fox.mp4", "fox.webm"):
            ended = await asyncio.to_thread(
                run, "generate", "--video", "a wolf", "--continue", name, "-o", "wolf.gif", *where
            )
            assert "64x64, 7 frames" in ended.output
            ended = await asyncio.to_thread(
                run, "generate", "--video", "a wolf", "--from", name, "-o", "wolf.webp", *where
            )
            assert "of 4 steps from the clip of job" in ended.output
        for words, said in (
            (("--video", "--continue", "fox.png"), r"continue_job: must be the job of a clip; from_job begins with an"),
            (("--from", "fox.mp4"), r"from_job: must be the job of an image \(got"),
        ):
            refused = await asyncio.to_thread(
                CliRunner().invoke, app, ["generate", "a wolf", *words, "--target", it.process.address]
            )
            assert re.search(rf"{said}.* \(the job that {words[-1]} names\)$", str(refused.exception))


async def test_an_error_about_the_served_models_names_the_address(make: Make) -> None:
    async with house(make(large="noop:?name=large", video="")) as it:
        for words, said in (
            (("--video",), "modality: must be image, because no video model is set (setting video)"),
            (("--quality", "sdxl"), "quality: must be a model served here: auto, large"),
        ):
            ask = ["generate", "a fox", *words, "--target", it.process.address]
            refused = await asyncio.to_thread(CliRunner().invoke, app, ask)
            assert str(refused.exception).startswith(said)
            assert str(refused.exception).endswith(f"; asked {it.process.address}")


async def test_clips_come_as_files_and_one_bad_file_costs_no_other(make: Make, tmp_path: Path) -> None:
    files = ("--poster", "fox.png", "--strip", "strip.webp", "--scale", 2)
    async with house(make(large="noop:", video="noop:?name=clips&frames=4")) as it:
        where = ("--target", it.process.address)
        (tmp_path / "fox-1.apng").symlink_to("/proc/none/fox.apng")  # only the write finds out
        ask = ["generate", "--video", "a fox", "-n", 2, "--steps", 2, "-o", "fox.apng", *files, *where]
        ended = await asyncio.to_thread(CliRunner().invoke, app, [str(word) for word in ask])
        assert "fox-2.apng  (128x128, 4 frames, seed" in ended.output
        assert "fox-2.png  (poster)\nstrip-2.webp  (strip)\n" in ended.output
        said = str(ended.exception)
        assert said.startswith("out: cannot write fox-1.apng (No such file or directory); fetch the clip again: ")
        again = shlex.split(said.partition("afterimage ")[2].replace("FILE", "again.apng"))
        assert "again.apng" in (await asyncio.to_thread(run, *again)).output
    for name, frames, size in (("fox-2.apng", 4, (128, 128)), ("again.apng", 4, (64, 64))):
        assert decode((tmp_path / name).read_bytes()).shape == (frames, *size, 3)
    for number in (1, 2):
        with Image.open(f"fox-{number}.png") as poster, Image.open(f"strip-{number}.webp") as strip:
            assert (poster.size, strip.size) == ((128, 128), (512, 128))


def test_demo_video_leaves_players_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFTERIMAGE_LARGE", "noop:")
    result = run("demo-video", "--video", "noop:?name=clips&frames=4", "--steps", 2, "--out", "demo")
    out = tmp_path / "demo"
    read = json.loads((out / "summary.json").read_text())
    assert (read["clips"], read["steps_total"]) == (6, 12)
    for number in range(1, 7):
        assert b"ftyp" in (out / f"{number:02}.mp4").read_bytes()[:12]
        with Image.open(out / f"{number:02}.jpg") as poster:
            assert poster.size == (256, 256)
    assert (out / "report.html").exists()
    assert "demo" in result.output


async def test_every_command_finds_what_listens_and_says_which_one(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In another folder than the one where `afterimage up` was typed."""
    async with house(make(large="noop:")) as it:
        address = it.process.address
        commands: dict[tuple[str, ...], str] = {
            ("generate", "a red fox", "--steps", "2"): "Started ",
            ("jobs", "list"): "a red fox",
            ("cache", "stats"): "1 entry, ",
            ("cache", "inspect"): "a red fox",
            ("monitor", "--once"): "global monitor",
        }
        for target in ([], ["--target", address]):
            monkeypatch.setenv("AFTERIMAGE_LISTEN", "127.0.0.1:1" if target else address)
            for command, shown in commands.items():
                said = await asyncio.to_thread(run, *command, *target)
                assert shown in said.stdout
                assert (said.stderr, "asking" in said.stdout) == (f"asking {address}\n", False)
                if command[0] == "generate":
                    await it.settled(await it.client.get_picture((await it.client.list_jobs())[0][0].job.id))
            commands[("cache", "stats")] = "2 entries, "
        health = await asyncio.to_thread(run, "health", "--target", address)
        assert health.output == f"{address}: serving\n"
    assert not (tmp_path / ".afterimage").exists()


async def test_only_callers_on_this_machine_are_told_where_the_other_services_listen(make: Make) -> None:
    async with house(make(large="noop:")) as it:
        gateway = next(service for service in it.process.services if isinstance(service, GatewayService))
        for peer, known in {
            "ipv4:127.0.0.1:5": True,
            "unix:": True,
            "ipv6:%5B::1%5D:5": True,
            "ipv4:10.0.0.7:5": False,
        }.items():
            located = await gateway.Locate(gateway_pb2.LocateRequest(), SimpleNamespace(peer=lambda peer=peer: peer))
            assert located.internal_address == (it.process.context.internal_address if known else "")


async def test_a_gateway_alone_has_no_cache_to_ask(make: Make) -> None:
    elsewhere = {f"{name}_address": "127.0.0.1:1" for name in ("embedder", "match_predictor", "retriever")}
    async with running([GatewayService()], make(large="noop:", **elsewhere)) as process:
        refused = await asyncio.to_thread(CliRunner().invoke, app, ["cache", "stats", "--target", process.address])
    assert isinstance(refused.exception, ConfigurationError)
    assert f"the gateway at {process.address} does not run cache_maintainer" in str(refused.exception)
    assert "AFTERIMAGE_CACHE_MAINTAINER_ADDRESS=host:port" in str(refused.exception)


def test_the_demo_draws_both_ways_and_leaves_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that `models add` prints. The demo waits once, not each time, for images never embedded."""
    settled, seconds = demo.settled, list[float]()

    async def timed(*given: Any) -> bool:
        begun = time.monotonic()
        images = await settled(*given)
        seconds.append(time.monotonic() - begun)
        return images

    monkeypatch.setattr(demo, "settled", timed)
    folder = tiny.build(tmp_path / "models", seed=3, name="other", clip=False) / "other"
    run("models", "add", folder, "--name", "mine", "--data-dir", "names")
    result = run("demo", "--large", "mine", "--data-dir", "names", "--steps", 10, "--out", "demo")
    out = tmp_path / "demo"
    read = json.loads((out / "summary.json").read_text())
    requests = read["requests"]
    assert len(requests) == len(seconds) == 12
    assert len([one for one in seconds if one >= demo.SETTLE_S]) == 1
    assert {request["model"] for request in requests} == {"mine"}
    assert [path.name for path in (tmp_path / "names").iterdir()] == ["models.json"]
    repeats = [request for request in requests if request["source"] == "exact"]
    assert len(repeats) == read["exact_repeats"]["pictures"] == 1
    assert read["pictures"] == 11
    assert read["steps_total"] == 110
    assert read["steps_run"] == sum(request["steps_run"] for request in requests) < 110
    assert all(request["steps_run"] == 10 - request["start_step"] for request in requests if request not in repeats)
    assert read["seconds_with_cache"] > 0 < read["seconds_without_cache"]
    notes = [note for request in requests for note in request["degraded"]]
    assert all(note.startswith("k_table: none measured") for note in notes)  # nobody profiled the tiny model
    assert read["few_steps"]["steps"] == 1
    assert read["few_steps"]["steps_run"] == read["few_steps"]["pictures"] == 11
    assert sum(one["pictures"] for one in read["saved_by_relation"].values()) == 11
    assert (read["variety"]["prompts"], read["variety"]["pictures"]) == (1, 3)
    for number in range(1, 13):
        for name in (f"{number:02}.png", f"{number:02}-without-cache.png", f"{number:02}-few-steps.png"):
            with Image.open(io.BytesIO((out / name).read_bytes())) as picture:
                assert picture.size == (64, 64)
    assert (out / "contact-sheet.png").exists()
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    assert "11 images" in result.output
    assert not (tmp_path / ".afterimage").exists()  # its cache was its own, and is gone


async def test_an_interrupted_generate_takes_its_job_along(make: Make) -> None:
    async with house(make(large=SLOW)) as it:
        drawing = asyncio.create_task(draw(it.client, "a red fox", {"steps": 500}, Console(quiet=True)))
        async with asyncio.timeout(20):
            while not (jobs := (await it.client.list_jobs())[0]):
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)
        drawing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await drawing
        assert (await it.client.get_job(jobs[0].job.id)).job.state is JobState.CANCELLED
