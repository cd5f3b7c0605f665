"""How ranks share an iteration: what the settings say, and what the planner says where there is a profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.trainer.finetuning.ranks.choice import chosen
from services.trainer.finetuning.ranks.group import Place, place_of
from services.trainer.finetuning.settings import RunSettings
from services.trainer.pipeline.costs.profile import AllReduce, Profile
from services.trainer.pipeline.costs.uniform import uniform_profile
from shared.domain.errors import ConfigurationError
from tests.unit.trainer.finetuning.conftest import settings_of


@pytest.fixture
def profile() -> Profile:
    """Equal layers with free transfers, so that a pipeline only loses."""
    return uniform_profile(0.9, 4, 64)


def job(tmp_path: Path, **ranks: object) -> RunSettings:
    return settings_of(tmp_path, tmp_path, tmp_path, batch=32, ranks=ranks)


def test_auto_takes_the_planners_verdict(profile: Profile, tmp_path: Path) -> None:
    found = chosen(job(tmp_path), 4, profile)
    assert found.plan is None
    assert found.why.startswith("data parallel (DDP). The planner: A pipeline is not worth it: ")
    assert found.report is not None
    assert {row["name"] for row in found.report["systems"]} >= {"DiffusionPipe", "DDP"}
    slow = profile.model_copy(update={"all_reduce": (AllReduce(devices=4, bandwidth_bytes_per_s=1, latency_s=9),)})
    assert chosen(job(tmp_path), 4, slow).plan is not None  # gradients of all layers cost more than bubbles


def test_a_pipeline_is_run_where_it_is_asked_for_and_fits(profile: Profile, tmp_path: Path) -> None:
    asked = job(tmp_path, parallel="pipeline")
    found = chosen(asked, 4, profile)
    assert found.plan is not None
    assert found.why.startswith("a pipeline with S = ")
    assert ", as ranks.parallel asks. The planner: A pipeline is not worth it: " in found.why
    with pytest.raises(ConfigurationError, match=r"ranks\.parallel: no pipeline fits 31 ranks and batch 32"):
        chosen(asked, 31, profile)


def test_a_run_without_fsdp_takes_the_pipeline_that_beats_ddp(profile: Profile, tmp_path: Path) -> None:
    """FSDP, which a run has not, would be the fastest: its verdict must not lead to DDP, the slowest."""
    slow = profile.model_copy(update={"all_reduce": (AllReduce(devices=4, bandwidth_bytes_per_s=1, latency_s=9),)})
    found = chosen(job(tmp_path), 4, slow)
    assert found.plan is not None
    assert "FSDP" not in found.why


def test_no_plan_is_run_that_needs_more_memory_than_a_gpu_has(profile: Profile, tmp_path: Path) -> None:
    dumped = profile.model_dump()
    for backbone in dumped["backbones"]:
        for layer in backbone["layers"]:
            layer["activation_bytes_per_sample"] = 1e6
    heavy, asked = Profile.model_validate(dumped), job(tmp_path, parallel="pipeline")
    assert chosen(asked, 4, heavy, memory_bytes=1e12).plan is not None
    with pytest.raises(ConfigurationError, match=r"ranks\.parallel: no pipeline fits 4 ranks"):
        chosen(asked, 4, heavy, memory_bytes=1e6)


def test_without_a_profile_ranks_are_data_parallel(profile: Profile, tmp_path: Path) -> None:
    assert chosen(job(tmp_path), 4, None).why == "data parallel, since no profile is given"
    assert chosen(job(tmp_path, parallel="data"), 4, profile).plan is None


def test_torchruns_variables_name_the_place() -> None:
    assert place_of({}) == Place(0, 1, 0)
    assert place_of({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}) == Place(3, 4, 1)
    with pytest.raises(ConfigurationError, match="RANK, WORLD_SIZE and LOCAL_RANK must be whole numbers"):
        place_of({"RANK": "one"})
