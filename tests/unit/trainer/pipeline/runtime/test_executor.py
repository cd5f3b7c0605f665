"""What the executor refuses before it starts; what it runs is in test_equal."""

from __future__ import annotations

import pytest

from services.trainer.pipeline.runtime.executor import check_plan
from shared.domain.errors import InvalidRequestError
from tests.unit.trainer.pipeline.runtime.tiny_jobs import Case, new_job, plan_of, profile_of


def test_a_plan_of_another_model_or_cluster_is_refused() -> None:
    case = Case("unet")
    training = new_job(case)
    profile = profile_of(training, case)
    plan = plan_of(training, case, profile)
    check_plan(training, plan, profile, 2)
    with pytest.raises(InvalidRequestError, match=r"devices: the plan is for 2 ranks \(got '3'\)"):
        check_plan(training, plan, profile, 3)
    other = new_job(Case("controlnet"))
    with pytest.raises(
        InvalidRequestError, match=r"profile: must be of this model: unet has \d+ layers, but controlnet"
    ):
        check_plan(other, plan, profile, 2)
    fewer = profile.model_copy(update={"frozen": profile.frozen[:1]})
    with pytest.raises(InvalidRequestError, match=r"no further part has 0 layers, but vae here has \d+"):
        check_plan(training, plan, fewer, 2)
