"""Pictures as a client gets them, made by hand."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
from PIL import Image

from services.cli.demo.figures import Embeddings, Row
from services.cli.demo.session import Prompt
from shared.client import Picture
from shared.domain.types import Candidate, Job, JobState, Plan, PlanSource, Request, Size, Timings, Vector


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


def row(prompt: str, source: PlanSource, start: int, seconds: float, without: float, relation: str = "edit") -> Row:
    """Return a row whose image in five steps has half the CLIP score of the other two images."""
    said, drawn = Prompt("ana", prompt, "a change"), picture(prompt, source, start)
    plan = replace(drawn.plan, relation="" if source is PlanSource.EXACT else relation)
    known = Embeddings(unit(0), unit(0), unit(0), unit(60))
    drawn = replace(drawn, job=replace(drawn.job, plan=plan))
    return Row(said, drawn, seconds, picture(prompt), without, picture(prompt, steps=5), 0.3, known)


def unit(degrees: float) -> Vector:
    """Return a unit vector in the plane; the cosine of two vectors is that of their degrees."""
    return np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], np.float32)
