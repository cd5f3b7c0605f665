"""Pictures as a client gets them, made by hand."""

from __future__ import annotations

import io

from PIL import Image

from services.cli.demo.report import Row
from services.cli.demo.session import Prompt
from shared.client import Picture
from shared.domain.types import Candidate, Job, JobState, Plan, PlanSource, Request, Size, Timings


def png(colour: str = "red") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (64, 64), colour).save(out, "PNG")
    return out.getvalue()


def picture(
    prompt: str = "a fox", source: PlanSource = PlanSource.NOISE, start: int = 0, steps: int = 50, total_s: float = 1.0
) -> Picture:
    hit = source in (PlanSource.LATENT, PlanSource.IMAGE)
    found = Candidate("e1", source.value, 0.91, 20, start, "a dog <b>", hit, "starts after", "large")
    candidates = (found,) if hit else ()
    plan = Plan(source, "large", start, similarity=0.91 if hit else 0.0, candidates=candidates, reason="Because.")
    request = Request(prompt=prompt, size=Size(64, 64), steps=steps, guidance=2.0, seed=7)
    job = Job("j1", request, plan, JobState.SUCCEEDED, warnings=("mind the gap",))
    run = 0 if source is PlanSource.EXACT else steps - start
    return Picture(job, "large", run, Timings(total_s=total_s), 10, "ab", png())


def row(prompt: str, source: PlanSource, start: int, seconds: float, without: float) -> Row:
    said = Prompt("ana", prompt, "a change")
    return Row(said, picture(prompt, source, start), seconds, picture(prompt), without)
