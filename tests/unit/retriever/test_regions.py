"""Which starts hold the patches that do not change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.domain.plan_rules import degrade, shown_plan, smaller_starts
from shared.domain.regions import region_until, reuses_in_a_row
from shared.domain.types import Plan, PlanSource, Scope
from tests.unit.retriever.test_planning import CARD, entry, plan, question, request


def hit(**more: Any) -> Plan:
    asked = question(**more.pop("asked", {}))
    return plan(asked, [(0.96, entry("e", **more.pop("held", {})))], **{"regions": True, **more})


def test_a_start_from_a_latent_names_the_image_and_the_last_step() -> None:
    found = hit()
    assert (found.source, found.region_until) == (PlanSource.LATENT, 47)
    assert (found.first_source.picture_key, found.first_source.picture_sha256) == ("pictures/e/1.png", "pe")
    assert found.reason.endswith("keep that image's run until step 47.")


@pytest.mark.parametrize(
    "more",
    [
        {"regions": False},
        {"asked": {"fresh_noise": 0.5}},
        {"held": {"picture_key": ""}},
    ],
    ids=["off", "fresh noise", "no image"],
)
def test_other_starts_hold_nothing(more: dict[str, Any]) -> None:
    found = hit(**more)
    assert (found.source, found.region_until) == (PlanSource.LATENT, 0)
    assert found.first_source.picture_key == ""
    assert "keep that image" not in found.reason


@given(st.integers(1, 200), st.integers(1, 200))
def test_a_region_ends_before_the_last_step_and_lasts_two_steps(start: int, steps: int) -> None:
    until = region_until(start, steps)
    if until:
        assert start + 1 < until < steps
        assert 0 < reuses_in_a_row(steps) <= 0.08 * steps
    else:
        assert reuses_in_a_row(steps) == 0 or steps - start <= 2 + max(round(0.06 * steps), 1)


def test_a_lost_state_keeps_the_region_and_a_lost_start_does_not() -> None:
    found = hit()
    assert degrade(found, "lost").region_until == 0
    steps = found.run_steps(50)
    held = replace(entry("e"), compat=CARD.compat_for(request()))
    (smaller, *_) = smaller_starts(found, held, CARD, request(), "a blob is gone")
    assert smaller.start_step < found.start_step < smaller.region_until < steps
    assert smaller.first_source.picture_key == found.first_source.picture_key
    assert smaller.first_source.key == f"states/e/1/{smaller.start_step}"


def test_the_image_of_another_caller_is_not_shown() -> None:
    found = hit(held={"tenant": "other", "scope": Scope.PUBLIC})
    assert found.region_until
    assert shown_plan(found, "").first_source.picture_key == ""
