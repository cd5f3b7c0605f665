"""How ranks share an iteration: what the settings say, and what the planner says where there is a profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.trainer.finetuning.ranks.choice import chosen
from services.trainer.finetuning.ranks.group import Place, place_of
from services.trainer.finetuning.settings import RunSettings
from services.trainer.pipeline.costs.profile_file import write_profile
from services.trainer.pipeline.costs.uniform import uniform_profile
from shared.domain.errors import ConfigurationError
from tests.unit.trainer.finetuning.conftest import settings_of


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Equal layers with free transfers, so that a pipeline only loses."""
    write_profile(uniform_profile(0.9, 4, 64), tmp_path / "p.json")
    return tmp_path / "p.json"


def job(tmp_path: Path, **ranks: object) -> RunSettings:
    return settings_of(tmp_path, tmp_path, tmp_path, batch=32, ranks=ranks)


def test_auto_takes_the_planners_verdict(profile: Path, tmp_path: Path) -> None:
    found = chosen(job(tmp_path, profile=profile), 4)
    assert found.parallel == "data"
    assert found.why.startswith("A pipeline is not worth it: ")
    assert found.plan is not None
    assert {row["name"] for row in found.plan["systems"]} >= {"DiffusionPipe", "DDP"}
    assert chosen(job(tmp_path, profile=profile, parallel="pipeline"), 4).parallel == "pipeline"


def test_without_a_profile_ranks_are_data_parallel(tmp_path: Path) -> None:
    assert chosen(job(tmp_path), 4).why == "data parallel, since no profile is given"
    assert chosen(job(tmp_path, parallel="data"), 4).parallel == "data"
    assert chosen(job(tmp_path, parallel="pipeline"), 1).why == "one rank"
    with pytest.raises(ConfigurationError, match=r"ranks\.profile: parallel = pipeline needs a profile"):
        chosen(job(tmp_path, parallel="pipeline"), 2)


def test_a_pipeline_that_does_not_fit_is_refused(profile: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"ranks\.parallel: no pipeline fits 31 ranks and batch 32"):
        chosen(job(tmp_path, profile=profile, parallel="pipeline"), 31)


def test_torchruns_variables_name_the_place() -> None:
    assert place_of({}) == Place(0, 1, 0)
    assert place_of({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}) == Place(3, 4, 1)
    with pytest.raises(ConfigurationError, match="RANK, WORLD_SIZE and LOCAL_RANK must be whole numbers"):
        place_of({"RANK": "one"})
