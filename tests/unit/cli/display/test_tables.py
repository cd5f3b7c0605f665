"""Tables that fit: what must be whole is whole at any width, and what is left out is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from protos import cache_maintainer_pb2 as pb
from services.cli.cache import entries_table
from services.cli.dead_letters import letters_table
from services.cli.demo.command import session_table
from services.cli.demo.figures import summary
from services.cli.demo.session import session
from services.cli.display.words import candidates_table, job_sheet, jobs_table
from services.cli.models import models_table
from shared.bus import DeadLetter
from shared.client import JobView
from shared.domain.types import JobState, PlanSource
from shared.runtime.settings import Settings
from tests.unit.cli.views import picture, row

PROMPT = "a watercolour painting of a big red fox on the left side in the snow by night, in a forest of firs"
ID = "01KAB2C3D4E5F6G7H8J9K0MNPQ"


def lines(table: Table, width: int) -> list[str]:
    console = Console(width=width, force_terminal=False, no_color=True)
    with console.capture() as text:
        console.print(table)
    shown = text.get().splitlines()
    assert max(map(len, shown)) <= width
    return shown


def jobs() -> list[JobView]:
    drawn = picture(PROMPT, PlanSource.LATENT, 20)
    drawn = replace(drawn, job=replace(drawn.job, id=ID, created_at=1.76e9))
    late = replace(drawn, job=replace(drawn.job, state=JobState.CANCELLED, error="deadline_s: passed before its turn"))
    return [drawn, late]


@pytest.mark.parametrize("width", [48, 80, 100, 120])
@pytest.mark.parametrize("count", [1, 2])
def test_ids_of_jobs_are_whole_at_any_width(width: int, count: int) -> None:
    shown = lines(jobs_table(jobs()[:count], width), width)
    assert sum(ID in line for line in shown) == count
    assert sum("succeeded" in line for line in shown) == 1


def test_eighty_columns_shorten_the_prompt_and_say_what_is_left_out() -> None:
    text = "\n".join(lines(jobs_table(jobs()[:1], 80), 80))
    assert "a watercolou" in text
    assert "…" in text
    assert "no room for: created" in text
    whole = "\n".join(lines(jobs_table(jobs()), 400))
    assert PROMPT in whole
    assert "no room for" not in whole


@pytest.mark.parametrize("width", [60, 80, 400])
def test_ids_of_entries_are_whole_and_their_states_all_there(width: int) -> None:
    states = [pb.State(step=step, uses=1) for step in (5, 10, 15, 20, 25)]
    entry = pb.Entry(id=ID, model="large", width=64, height=64, steps=50, states=states, prompt=PROMPT)
    text = "\n".join(lines(entries_table([entry], width), width))
    assert ID in text
    assert all(f"{step}(1)" in text for step in (5, 10, 15, 20, 25))
    assert " of" in text
    hit = pb.Entry(id=ID, model="small", steps=50, picture=pb.State(uses=1), prompt=PROMPT)
    assert " of 50" not in "\n".join(lines(entries_table([hit], width), width))


@pytest.mark.parametrize("width", [48, 80, 400])
def test_letters_are_whole_where_they_must_be_typed(width: int) -> None:
    letter = DeadLetter(ID, "generate.large", "GenerateImage", "{}", "attempt 3 failed: no such key", 2, 1.76e9)
    text = "\n".join(lines(letters_table([letter, letter], width), width))
    assert text.count(ID) == 2
    assert "attempt 3" in text


@pytest.mark.parametrize("width", [80, 400])
def test_names_of_models_are_whole_where_they_must_be_typed(width: int, tmp_path: Path) -> None:
    (tmp_path / "models.json").write_text(json.dumps({"a-fine-tune": "/somewhere/that/is/gone"}))
    text = "\n".join(lines(models_table(Settings(data_dir=tmp_path), width), width))
    for name in ("large", "sd-3.5-large-turbo", "sana-1.6b", "a-fine-tune"):
        assert any(line.strip("│ ").startswith(name) for line in text.splitlines())
    assert "28.9 GiB" in text
    assert ("no room for: latent, T, guidance, dtype" in text) == (width == 80)


def test_the_session_is_readable_at_eighty_columns() -> None:
    rows = [row(prompt.text, PlanSource.LATENT, 20, 1.2, 2.0) for prompt in session()]
    shown = lines(session_table(rows, 80), 80)
    assert len(shown) <= 40  # a dozen prompts, two or three lines each
    assert "0.910" in "\n".join(shown)
    assert all(name in " ".join(shown[:3]) for name in ("prompt", "source", "similarity", "seconds", "without"))


def test_candidates_wrap_rather_than_crush() -> None:
    plan = picture(PROMPT, PlanSource.LATENT, 20).plan
    assert len(lines(candidates_table(plan, 80), 80)) <= 6


def test_a_picture_from_noise_shows_how_near_the_nearest_was() -> None:
    near = picture(PROMPT, PlanSource.LATENT, 20).plan.candidates
    missed = row(PROMPT, PlanSource.NOISE, 0, 2.0, 2.0)
    plan = replace(missed.picture.plan, candidates=(replace(near[0], similarity=0.761, chosen=False),))
    noise = replace(missed, picture=replace(missed.picture, job=replace(missed.picture.job, plan=plan)))
    assert "0.761" in "\n".join(lines(session_table([noise]), 400))
    assert "–" in "\n".join(lines(session_table([missed]), 400))
    written = [one["similarity"] for one in json.loads(summary([noise, missed]))["requests"]]
    assert written == [0.761, None]


def test_a_job_sheet_says_what_was_planned_for_the_deadline() -> None:
    (drawn, _) = jobs()
    plan = replace(drawn.job.plan, for_deadline="model")
    job = replace(drawn.job, plan=plan, request=replace(drawn.job.request, deadline_s=3.0), predicted_s=2.5)
    text = "\n".join(lines(job_sheet(replace(drawn, job=job)), 200))
    assert "3 s, predicted 2.5 s, planned with another model, met" in text
    job = replace(job, plan=replace(plan, for_deadline="steps"), request=replace(job.request, deadline_s=3600.0))
    text = "\n".join(lines(job_sheet(replace(drawn, job=job)), 200))
    assert "3600 s, predicted 2.5 s, planned with another number of steps, met" in text
