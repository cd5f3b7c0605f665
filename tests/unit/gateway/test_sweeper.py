"""What a crash left unsent is sent again, from a real catalog to a real bus."""

from __future__ import annotations

from pathlib import Path

from services.gateway.sweeper import Confirmer, Sweeper
from shared.bus.inprocess import InProcessBus
from shared.catalog import open_catalog
from shared.messages import GenerateImage
from shared.types import Job, JobState, Plan, PlanSource, Request, Size

REQUEST = Request(prompt="a fox", size=Size(64, 64), steps=10, guidance=2.0, seed=1)


def job(name: str) -> Job:
    return Job(name, REQUEST, Plan(PlanSource.NOISE, "large"), JobState.QUEUED, lane="generate.large")


async def test_unconfirmed_jobs_are_sent_again_and_confirmed_ones_are_not(tmp_path: Path) -> None:
    catalog, bus = await open_catalog(f"sqlite+aiosqlite:///{tmp_path}/c.sqlite3"), InProcessBus()
    armed: list[str] = []
    sweeper = Sweeper(catalog, bus, 0.0, lambda job: armed.append(job.id))
    confirmer = Confirmer(catalog, every_s=0.0)
    for name in ("sent", "lost"):
        await catalog.jobs.accept(job(name), key_lifetime_s=60.0)
    confirmer.sent("sent")
    await confirmer.close()

    assert await sweeper.sweep() == 1
    receiver = await bus.receive(["generate.large"], prefetch=4)
    assert (await receiver.get()).message == GenerateImage("lost")
    assert await sweeper.sweep() == 0
    assert armed == ["lost"]
    assert await sweeper.recover() == 2  # a new process: the old one's queue is gone
    await receiver.close()
    await bus.close()
    await catalog.close()
