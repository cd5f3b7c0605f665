"""Any interleaving of workers' operations on one job has one winner."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.catalog import Catalog
from shared.domain.ids import new_id
from shared.domain.types import JobState
from tests.contracts.nouns import EXPIRED_S, LEASE_S, a_job, a_result


@dataclass
class Model:
    """What a job's row must say, in the fewest words."""

    state: JobState = JobState.QUEUED
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    lease_alive: bool = False

    def end(self, state: JobState) -> None:
        self.state, self.lease_alive = state, False


WORKERS = st.integers(0, 2)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), WORKERS, st.booleans()),
        st.tuples(st.just("renew"), WORKERS, st.booleans()),
        st.tuples(st.sampled_from(["finish", "fail", "retry", "release", "checkpoint"]), WORKERS, st.just(True)),
        st.tuples(st.sampled_from(["cancel", "sweep"]), st.just(0), st.just(True)),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(operations=OPERATIONS)
async def test_any_interleaving_has_one_winner(catalog: Catalog, operations: list[tuple[str, int, bool]]) -> None:
    job_id = new_id()
    await catalog.jobs.accept(a_job(id=job_id), key_lifetime_s=60.0)
    await catalog.jobs.confirm([job_id])
    model, attempts, endings = Model(), [0, 0, 0], 0
    for name, worker, alive in operations:
        attempt = attempts[worker]
        mine = model.state == JobState.RUNNING and attempt == model.attempt
        lease_s = LEASE_S if alive else EXPIRED_S
        match name:
            case "claim":
                wins = model.state == JobState.QUEUED or (model.state == JobState.RUNNING and not model.lease_alive)
                claimed = await catalog.jobs.claim(job_id, f"w{worker}", lease_s)
                assert (claimed is not None) == wins
                if claimed is not None:
                    model.crashes += model.state == JobState.RUNNING
                    model.state, model.lease_alive = JobState.RUNNING, alive
                    model.attempt += 1
                    attempts[worker] = claimed.attempt
            case "renew":
                assert await catalog.jobs.renew(job_id, attempt, lease_s) == mine
                model.lease_alive = alive if mine else model.lease_alive
            case "checkpoint":
                assert await catalog.jobs.checkpoint(job_id, attempt, "checkpoints/k", 3) == mine
            case "finish":
                done = await catalog.jobs.finish(job_id, attempt, a_result(job_id, attempt))
                assert done == mine
                endings += done
                if done:
                    model.end(JobState.SUCCEEDED)
            case "fail" | "retry":
                done = await catalog.jobs.fail(job_id, attempt, "no", final=name == "fail")
                assert done == mine
                if done:
                    endings += name == "fail"
                    model.failures += 1
                    model.end(JobState.FAILED if name == "fail" else JobState.QUEUED)
            case "release":
                assert await catalog.jobs.release(job_id, attempt) == mine
                if mine:
                    model.end(JobState.QUEUED)
            case "cancel":
                before = model.state
                row = await catalog.jobs.cancel(job_id)
                if not before.final:
                    endings += 1
                    model.end(JobState.CANCELLED)
                assert row.state == model.state
            case "sweep":
                dead = model.state == JobState.RUNNING and not model.lease_alive
                swept = [job.id for job in await catalog.jobs.to_requeue(unconfirmed_after_s=60.0)]
                assert (job_id in swept) == dead
                if dead:
                    model.crashes += 1
                    model.end(JobState.QUEUED)
        row = await catalog.jobs.get(job_id)
        assert (row.state, row.attempt, row.failures, row.crashes) == (
            model.state,
            model.attempt,
            model.failures,
            model.crashes,
        )
    assert endings == model.state.final
    await catalog.jobs.cancel(job_id)  # so that other examples' sweeps leave it alone
