"""Plans in words."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from services.cli.demo.report import started
from services.cli.display.words import (
    ProgressBars,
    candidates_table,
    counted,
    hint,
    job_sheet,
    jobs_table,
    keep_picture,
    where_it_started,
    where_it_would_start,
)
from shared.client import Clip
from shared.domain.errors import AfterimageError, InvalidRequestError
from shared.domain.parts import Parts
from shared.domain.types import Candidate, JobState, Modality, PlanSource, Timings
from tests.unit.cli.views import picture


def shown(*things: object) -> str:
    console = Console(width=200, record=True, file=None, quiet=False)
    with console.capture() as text:
        for thing in things:
            console.print(thing)
    return text.get()


def test_where_it_started_says_what_it_saved() -> None:
    assert where_it_started(picture()) == "Started from noise: 50 steps in 1.00 s."
    assert where_it_started(picture(steps=1)) == "Started from noise: 1 step in 1.00 s."
    hit = where_it_started(picture(source=PlanSource.LATENT, start=20))
    assert hit == "Started after step 20 of 50 from “a dog <b>” (similarity 0.910): 30 steps in 1.00 s, 20 saved."
    assert "no step run" in where_it_started(picture(source=PlanSource.EXACT))
    region = replace(picture(source=PlanSource.LATENT, start=20), skipped=0.25)
    assert where_it_started(region).endswith("30 steps in 1.00 s, 20 saved, 25% of their work skipped.")
    held = replace(region.job, plan=replace(region.job.plan, region_until=47))
    assert where_it_started(replace(region, job=held, skipped=0.0)).endswith("20 saved, no patch kept.")


def test_a_dry_run_says_where_the_image_would_start() -> None:
    assert where_it_would_start(picture()) == "Would start from noise: 50 steps with large."
    hit = where_it_would_start(picture(source=PlanSource.LATENT, start=20))
    assert hit == (
        "Would start after step 20 of 50 from “a dog <b>” (similarity 0.910): 30 steps with large, 20 saved."
    )
    assert "no step run" in where_it_would_start(picture(source=PlanSource.EXACT))


def test_where_it_started_says_from_where_it_went_on() -> None:
    """Fewer steps than T ran from noise: an attempt before ran the others."""
    drawn = picture()
    resumed = replace(drawn, steps_run=20, job=replace(drawn.job, attempt=2))
    assert where_it_started(resumed) == "Started from noise: 20 steps in 1.00 s, resumed after step 30 of 50."
    hit = picture(source=PlanSource.LATENT, start=20)
    said = where_it_started(replace(hit, steps_run=10, job=replace(hit.job, attempt=2)))
    assert said.endswith("10 steps in 1.00 s, 20 saved, resumed after step 40 of 50.")


def test_an_image_hit_says_whose_picture_it_was_and_who_went_on() -> None:
    hit = replace(picture(source=PlanSource.IMAGE, start=10), model="small")
    assert where_it_started(hit) == (
        "Started after step 10 of 50 from large's image of “a dog <b>”, by small (similarity 0.910): "
        "40 steps in 1.00 s, 10 saved."
    )
    assert hint(hit.plan) == ""
    text = shown(candidates_table(hit.plan))
    assert re.search(r"→ .* a dog <b> .* large .* image .* 0.910", text)
    assert started(hit.plan, 50) == "from step 10 of 50, from large's image"


def test_a_candidate_shows_t_where_it_is_not_the_requests() -> None:
    plan = picture(source=PlanSource.LATENT, start=20).plan
    few = replace(plan, candidates=(replace(plan.candidates[0], allowed_step=3, start_step=2, steps=5),))
    assert re.search(r"3/5 .* 2/5", shown(candidates_table(few)))


def test_a_plan_shows_its_relation_and_root_where_they_were_recorded() -> None:
    hit = picture(source=PlanSource.LATENT, start=20)
    assert "relation" not in shown(candidates_table(hit.plan), job_sheet(hit))
    edit = replace(hit.plan, relation="edit", root="e0", candidates=(replace(hit.plan.candidates[0], relation="edit"),))
    known = replace(hit, job=replace(hit.job, plan=edit))
    assert re.search(r"relation +edit, root e0", shown(job_sheet(known)))
    assert re.search(r"→ .* latent .* edit .* 0.910", shown(candidates_table(edit)))
    noise = replace(picture(), job=replace(picture().job, plan=replace(picture().plan, relation="reroll")))
    assert re.search(r"relation +reroll *\n", shown(job_sheet(noise)))


def test_a_hit_says_what_varies_it() -> None:
    hit = picture(source=PlanSource.LATENT, start=20).plan
    assert "--variation new" in hint(hit)
    assert "--fresh-noise" in hint(hit)
    assert hint(replace(hit, fresh_noise=0.3)) == ""
    assert hint(picture().plan) == hint(picture(source=PlanSource.EXACT).plan) == ""


def test_a_job_without_a_picture_says_why() -> None:
    drawn = picture()
    dropped = replace(drawn, steps_run=7, job=replace(drawn.job, state=JobState.CANCELLED, error="too late"))
    assert "because" not in shown(jobs_table([drawn]))
    text = shown(jobs_table([drawn, dropped]))
    assert "because" in text
    assert re.search(r"cancelled .* 7 .* a fox .* too late", text)


def test_a_picture_that_cannot_be_written_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AfterimageError, match=r"out: cannot write .*: afterimage jobs show j1 --out FILE"):
        keep_picture(picture(), tmp_path / "file" / "fox.png")
    with pytest.raises(AfterimageError, match=r"jobs show j1 --out FILE --tenant acme$"):
        keep_picture(picture(), tmp_path / "file" / "fox.png", " --tenant acme")
    assert keep_picture(picture(), tmp_path / "new" / "fox.png") == tmp_path / "new"
    assert keep_picture(picture(), tmp_path / "new" / "fox.png") is None
    with Image.open(tmp_path / "new" / "fox.png") as kept, Image.open(io.BytesIO(picture().png)) as drawn:
        assert kept.tobytes() == drawn.tobytes()
        assert kept.info["job"] == "j1"


def test_any_failed_write_names_the_job_and_the_kind_of_file(tmp_path: Path) -> None:
    still = picture()
    request = replace(still.job.request, modality=Modality.VIDEO, frames=2)
    clip = Clip(replace(still.job, request=request), "clips", 50, Timings())

    def refuse() -> None:
        raise InvalidRequestError("scale", "must be less", 16)

    def fail() -> None:
        raise ValueError("encoding error 5")

    again = "afterimage jobs show j1 --out FILE"
    with pytest.raises(AfterimageError) as refused:
        keep_picture(clip, tmp_path / "fox.mp4", save=refuse)
    assert str(refused.value) == (
        f"out: cannot write {tmp_path}/fox.mp4 (scale: must be less (got '16')); fetch the clip again: {again}"
    )
    with pytest.raises(AfterimageError) as failed:
        keep_picture(clip, tmp_path / "s.webp", save=fail, field="strip")
    assert str(failed.value) == (
        f"strip: cannot write {tmp_path}/s.webp (encoding error 5); fetch the strip again: {again} --strip FILE"
    )


def test_prompts_are_never_markup() -> None:
    hostile = picture("[bold]a fox[/bold] [/]", PlanSource.LATENT, 20)
    text = shown(jobs_table([hostile]), job_sheet(hostile), candidates_table(hostile.plan))
    assert text.count("[bold]a fox[/bold] [/]") == 2
    assert "a dog <b>" in text
    assert "mind the gap" in text


def test_a_bar_says_nothing_where_there_is_no_terminal() -> None:
    console = Console(force_terminal=False)
    with console.capture() as said, ProgressBars(console=console) as bar:
        bar.add_task("drawing", total=2)
    assert said.get() == ""


def test_a_job_says_where_it_went_on() -> None:
    view = picture(steps=100)
    assert "resumed" not in shown(job_sheet(view))
    again = replace(view, job=replace(view.job, attempt=2))
    assert "resumed" not in shown(job_sheet(again))  # it began anew
    assert "64, resumed after step 36 of 100" in shown(job_sheet(replace(again, steps_run=64)))


def test_one_of_a_kind_is_not_many() -> None:
    assert [counted(1, "entry"), counted(2, "entry"), counted(0, "state")] == ["1 entry", "2 entries", "0 states"]


def test_a_pair_is_shown_with_both_sources() -> None:
    made = picture(source=PlanSource.STITCHED, start=20)
    pair = Candidate(
        "e1", "pair", 0.88, 25, 20, "a dog in snow", True, "starts after", "clips", background_id="e2",
        background_prompt="a cat in a wood", object_similarity=0.93, background_similarity=0.88,
    )  # fmt: skip
    plan = replace(
        made.job.plan, candidates=(pair,), parts=Parts("a dog", ""), root="e1", background_root="e3", similarity=0.88
    )
    made = replace(made, job=replace(made.job, plan=plan))
    assert where_it_started(made) == (
        "Started after step 20 of 50 from the object of “a dog in snow” (similarity 0.930) over the background of "
        "“a cat in a wood” (0.880): 30 steps in 1.00 s, 20 saved."
    )
    assert where_it_would_start(made).startswith("Would start after step 20 of 50 from the object of “a dog in snow”")
    text = shown(candidates_table(plan, 200), job_sheet(made))
    assert "a dog in snow + a cat in a wood" in text
    assert "object “a dog” · no background" in text
    assert "root e1 and e3" in text
    assert hint(plan)
