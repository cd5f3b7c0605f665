"""A prompt that is too long is said once."""

from __future__ import annotations

from shared.domain.truncation import UNSEARCHED, told_once, undrawn
from shared.domain.types import Job, JobState, Plan, PlanSource, Request, Result, Size
from shared.runtime.rpc_types import job_to_proto


def test_what_the_model_says_of_a_long_prompt_stands_for_what_the_search_said() -> None:
    drawn = undrawn(30, 70)
    assert drawn == "prompt: only the first 30 of 70 tokens were read"
    assert told_once(("strange words", UNSEARCHED, drawn, drawn)) == ("strange words", drawn)
    assert told_once((UNSEARCHED, "strange words")) == (UNSEARCHED, "strange words")  # a model that reads further


def test_a_job_has_one_warning_for_it() -> None:
    request = Request(prompt="a fox", size=Size(64, 64), steps=10, guidance=2.0, seed=1)
    job = Job(
        "j1",
        request,
        Plan(PlanSource.NOISE, "large"),
        JobState.SUCCEEDED,
        warnings=(UNSEARCHED,),
        result=Result("p", "", 1, "large", "w", 10, warnings=(undrawn(30, 70),)),
    )
    assert list(job_to_proto(job).warnings) == [undrawn(30, 70)]
