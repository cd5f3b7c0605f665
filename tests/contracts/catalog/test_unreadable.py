"""Rows that only another version of Afterimage can read are set aside: they stop nothing, stay as they are, and come
back with a version that reads them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from shared.catalog import Catalog
from shared.domain.errors import AfterimageError, UnreadableRowError
from shared.domain.types import JobState
from tests.contracts.catalog.conftest import Row, change, counted, look
from tests.contracts.nouns import EXPIRED_S, LEASE_S, OWNER, a_job, a_result, accepted, finished, latents_of

pytestmark = pytest.mark.usefixtures("nothing_is_reported_yet")

SUPERPOSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "an unknown source": ("plan", {"source": "superposed"}, r"plan\.source: .*superposed"),
    "an unknown modality": ("request", {"modality": "audio"}, r"request\.modality: .*audio"),
    "a field of another type": ("plan", {"capture_steps": "all"}, r"plan\.capture_steps: "),
}


async def spoilt(catalog: Catalog, id: str, column: str = "plan", **fields: Any) -> Row:
    """Writes fields into the JSON of a column as another version would; returns what mends that."""
    said = json.loads((await look(catalog, id))[column])
    return await change(catalog, id, **{column: json.dumps(said | (fields or {"source": "superposed"}))})


@pytest.mark.parametrize("case", SUPERPOSED)
async def test_reading_such_a_job_says_which_field_and_what_to_do(catalog: Catalog, case: str) -> None:
    column, fields, said = SUPERPOSED[case]
    job = await accepted(catalog)
    mended = await spoilt(catalog, job.id, column, **fields)
    with pytest.raises(UnreadableRowError, match=f"job '{job.id}' .*{said}.*a newer version can read it") as caught:
        await catalog.jobs.get(job.id)
    assert caught.value.tenant == "default"
    await change(catalog, job.id, **mended)
    assert await catalog.jobs.get(job.id) == replace(job, confirmed=False)


async def test_a_missing_field_an_unknown_state_and_no_json_are_no_less_unreadable(catalog: Catalog) -> None:
    a_secret = "a prompt that belongs in no log"
    missing, state, garbage = [await accepted(catalog, prompt=a_secret) for _ in range(3)]
    request = json.loads((await look(catalog, missing.id))["request"])
    del request["size"]
    await change(catalog, missing.id, request=json.dumps(request))
    await change(catalog, state.id, state="paused")
    await change(catalog, garbage.id, plan="{")
    for job, said in ((missing, "request.size"), (state, "paused"), (garbage, "plan")):
        with pytest.raises(UnreadableRowError, match=said) as caught:
            await catalog.jobs.get(job.id)
        assert a_secret not in str(caught.value)
    assert await catalog.jobs.list() == ([], "")


async def test_it_is_reported_once_whatever_reads_it(catalog: Catalog, capsys: pytest.CaptureFixture[str]) -> None:
    before, jobs = counted(), [await accepted(catalog) for _ in range(2)]
    for job in jobs:
        await spoilt(catalog, job.id)
    for _ in range(3):
        assert await catalog.jobs.to_requeue(unconfirmed_after_s=-1.0) == []
        assert await catalog.jobs.list() == ([], "")
    said = capsys.readouterr()
    assert [(said.out + said.err).count(job.id) for job in jobs] == [1, 1]
    assert counted() == before + 2


async def test_of_very_many_only_the_first_are_reported(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shared.runtime.unreadable.REMEMBERED", 2)
    before, jobs = counted(), [await accepted(catalog) for _ in range(3)]
    for job in jobs:
        await spoilt(catalog, job.id)
    for _ in range(3):
        assert await catalog.jobs.list() == ([], "")
    said = capsys.readouterr()
    assert sorted((said.out + said.err).count(job.id) for job in jobs) == [0, 1, 1]
    assert counted() == before + 2


async def test_the_sweeps_leave_it_as_it_is_and_go_on(catalog: Catalog) -> None:
    queued, running, expired, fine, dead = [await accepted(catalog, id=f"job{n}") for n in range(5)]
    await catalog.jobs.claim(running.id, "w1", LEASE_S)
    for job in (expired, dead):
        await catalog.jobs.claim(job.id, "w1", EXPIRED_S)
    mended = {job.id: await spoilt(catalog, job.id) for job in (queued, running, expired)}
    before = {job_id: await look(catalog, job_id) for job_id in mended}
    for _ in range(2):
        found = await catalog.jobs.to_requeue(unconfirmed_after_s=-1.0, anyhow_after_s=-1.0)
        assert [(job.id, job.crashes) for job in found] == [(fine.id, 0), (dead.id, 1)]
    assert [job.id for job in await catalog.jobs.recover()] == [fine.id, dead.id]
    assert {job_id: await look(catalog, job_id) for job_id in mended} == before
    for job_id, columns in mended.items():  # a version that can read them runs
        await change(catalog, job_id, **columns)
    found = await catalog.jobs.to_requeue(unconfirmed_after_s=-1.0)
    assert [(job.id, job.crashes) for job in found] == [("job0", 0), ("job2", 1), ("job3", 0), ("job4", 1)]
    recovered = await catalog.jobs.recover()
    assert [(job.id, job.crashes) for job in recovered][:3] == [("job0", 0), ("job1", 1), ("job2", 1)]


async def test_pages_of_jobs_go_on_past_it(catalog: Catalog) -> None:
    jobs = [await accepted(catalog, id=f"job{n}") for n in range(9)]
    for n in (0, 3, 4, 5, 6, 8):
        await spoilt(catalog, jobs[n].id)
    listed, after = [], ""
    while True:
        page, after = await catalog.jobs.list(tenant="default", limit=2, after=after)
        assert page or not after  # no client takes an empty page for the end
        listed += [job.id for job in page]
        if not after:
            break
    assert listed == ["job7", "job2", "job1"]
    page = await catalog.jobs.waiting("generate.tiny", 2)
    assert [job.id for job in page] == ["job1"]
    assert [job.id for job in await catalog.jobs.waiting("generate.tiny", 2, "job2")] == ["job7"]
    assert await catalog.jobs.waiting("generate.tiny", 2, "job7") == []


async def test_a_lane_does_not_starve_for_it(catalog: Catalog) -> None:
    old, other = await accepted(catalog, lane="generate.a"), await accepted(catalog, lane="generate.b")
    await change(catalog, old.id, created_at=1.0)
    new = await accepted(catalog, lane="generate.a")
    assert (await catalog.jobs.waits(["generate.a"]))["generate.a"] > 1e6
    for job in (old, other):
        await spoilt(catalog, job.id)
    assert (await catalog.jobs.waits(["generate.a", "generate.b", "generate.c"])).keys() == {"generate.a"}
    assert (await catalog.jobs.waits(["generate.a"]))["generate.a"] < 1e6
    await spoilt(catalog, new.id)
    assert await catalog.jobs.waits(["generate.a"]) == {}


async def test_it_is_not_claimed_and_a_version_that_reads_it_claims_it(catalog: Catalog, replica: Catalog) -> None:
    job = await accepted(catalog)
    await catalog.jobs.confirm([job.id])
    mended = await spoilt(catalog, job.id)
    with pytest.raises(UnreadableRowError):
        await catalog.jobs.claim(job.id, "w1", LEASE_S)
    before = await look(catalog, job.id)
    assert (before["state"], before["failures"], before["crashes"], before["lease_until"]) == ("queued", 0, 0, 0.0)
    for _ in range(2):  # the row is not changed again and again
        with pytest.raises(UnreadableRowError):
            await replica.jobs.claim(job.id, "w2", LEASE_S)
    assert await look(catalog, job.id) == before
    with pytest.raises(UnreadableRowError):
        await catalog.jobs.cancel(job.id)
    assert await look(catalog, job.id) == before
    await change(catalog, job.id, **mended)
    claimed = await catalog.jobs.claim(job.id, "w1", LEASE_S)
    assert claimed is not None
    assert (claimed.state, claimed.crashes) == (JobState.RUNNING, 0)


async def test_a_crash_of_it_counts_once(catalog: Catalog) -> None:
    job = await accepted(catalog)
    await catalog.jobs.claim(job.id, "w1", EXPIRED_S)
    mended = await spoilt(catalog, job.id)
    for _ in range(3):
        with pytest.raises(UnreadableRowError):
            await catalog.jobs.claim(job.id, "w2", LEASE_S)
        await catalog.jobs.to_requeue(unconfirmed_after_s=60.0)
    await change(catalog, job.id, **mended)
    await catalog.jobs.to_requeue(unconfirmed_after_s=60.0)
    claimed = await catalog.jobs.claim(job.id, "w3", LEASE_S)
    assert claimed is not None
    assert claimed.crashes == 1


async def test_what_another_version_wrote_beside_survives_a_new_plan(catalog: Catalog) -> None:
    job = await accepted(catalog)
    said = json.loads((await look(catalog, job.id))["plan"]) | {"upscaler": "x2"}
    said["candidates"] = [
        {"entry_id": "e", "kind": "latent", "similarity": 0.9, "wished_step": 5, "start_step": 5, "hue": "red"}
    ]
    await change(catalog, job.id, plan=json.dumps(said))
    await spoilt(catalog, job.id, "request", tempo=120)
    read = await catalog.jobs.get(job.id)
    assert await catalog.jobs.reroute(job.id, 0, "generate.other", replace(read.plan, reason="moved"))
    claimed = await catalog.jobs.claim(job.id, "w1", LEASE_S)
    assert claimed is not None
    plan = replace(claimed.plan, start_step=0, reason="as run")
    assert await catalog.jobs.finish(job.id, 1, a_result(job.id), plan)
    row = await look(catalog, job.id)
    now = json.loads(row["plan"])
    assert (now["upscaler"], now["candidates"][0]["hue"], now["reason"]) == ("x2", "red", "as run")
    assert json.loads(row["request"])["tempo"] == 120
    await spoilt(catalog, job.id, "result", joules=3.5)  # a result with one more field is readable
    assert (await catalog.jobs.get(job.id)).state is JobState.SUCCEEDED


async def test_an_ended_one_is_kept_with_what_it_names(catalog: Catalog) -> None:
    job, other = await finished(catalog), await finished(catalog)
    mended = await spoilt(catalog, job.id, "result", steps_run="many")
    assert await catalog.jobs.expire(-1.0) == sorted([f"pictures/{other.id}/1.png", *latents_of(other)])
    assert (await look(catalog, job.id))["state"] == "succeeded"
    keys = [f"pictures/{job.id}/1.png", f"states/{job.id}/1/5"]
    assert await catalog.entries.referenced(keys) == set(keys)
    assert await catalog.jobs.to_cache() == [job.id]  # the maintainer finds it once it can be read
    await change(catalog, job.id, **mended)
    assert await catalog.jobs.expire(-1.0) == sorted([f"pictures/{job.id}/1.png", *latents_of(job)])


async def test_a_repeat_of_it_is_a_miss(catalog: Catalog) -> None:
    seen, job = await finished(catalog), await finished(catalog)
    await spoilt(catalog, job.id)
    found = await catalog.entries.exact("x", "default", [OWNER])
    assert found is not None
    assert found.id == seen.id  # the newest that can be read
    await spoilt(catalog, seen.id)
    assert await catalog.entries.exact("x", "default", [OWNER]) is None


async def test_a_key_that_names_it_says_why_there_is_no_answer(catalog: Catalog) -> None:
    key: dict[str, Any] = {"idempotency_key": "k", "caller": "alice", "body_hash": "h", "key_lifetime_s": 60.0}
    job, _ = await catalog.jobs.accept(a_job(), **key)
    await spoilt(catalog, job.id)
    for asked in (catalog.jobs.accept(a_job(), **key), catalog.jobs.first_all("alice", "k", "h")):
        with pytest.raises(AfterimageError, match=r"plan\.source"):
            await asked
    assert await catalog.jobs.queued() == 1
