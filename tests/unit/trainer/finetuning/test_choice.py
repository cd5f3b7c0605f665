"""How ranks share an iteration: what the settings say, and what the planner says where there is a profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.trainer.finetuning.ranks.choice import chosen
from services.trainer.finetuning.ranks.group import Place, place_of
from services.trainer.finetuning.ranks.memory_advice import memory_advice
from services.trainer.finetuning.ranks.steppers import with_state
from services.trainer.finetuning.settings import RunSettings
from services.trainer.pipeline.costs.profile import AllReduce, Profile
from services.trainer.pipeline.costs.recomputing import recomputed
from services.trainer.pipeline.costs.uniform import uniform_profile
from services.trainer.pipeline.schedule.memory import trained_bytes
from services.trainer.pipeline.search import best_plan
from services.trainer.pipeline.settings import PlanSettings
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
    with pytest.raises(
        ConfigurationError, match=r"no pipeline fits 31 ranks and batch 32: take ranks whose number has"
    ):
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
    with pytest.raises(
        ConfigurationError, match=r"no pipeline fits 4 ranks and batch 32 in 1 MiB of memory a GPU: set "
    ):
        chosen(asked, 4, heavy, memory_bytes=1e6)


def test_with_gradient_checkpointing_a_plan_keeps_the_inputs_of_layers_only(profile: Profile, tmp_path: Path) -> None:
    dumped = profile.model_dump()
    for layer in dumped["backbones"][0]["layers"]:
        layer |= {"activation_bytes_per_sample": 1e6, "output_bytes_per_sample": 1e3}
    heavy = Profile.model_validate(dumped)
    light = recomputed(heavy)
    job = PlanSettings(batch=32, devices=4)
    before, after = (best_plan(one, job.model_copy(update={"fill": False})) for one in (heavy, light))
    assert before is not None
    assert after is not None
    assert max(after.memory_bytes) == pytest.approx(max(before.memory_bytes) / 1000)
    [whole], [twice] = heavy.backbones, light.backbones
    assert twice.backward_s(0, 4) == pytest.approx(whole.backward_s(0, 4) + whole.forward_s(0, 4))
    assert recomputed(profile).backbones[0].layers[0].activation_bytes_per_sample == 0  # never more than before


def test_a_measured_plan_counts_averages_of_trained_weights_alone(profile: Profile, tmp_path: Path) -> None:
    dumped = profile.model_dump()
    for layer in dumped["backbones"][0]["layers"]:
        layer |= {"parameter_bytes": 1000, "gradient_bytes": 100}  # adapters
    adapters = Profile.model_validate(dumped)
    averaged = with_state(adapters, settings_of(tmp_path, tmp_path, tmp_path))
    assert trained_bytes(averaged, averaged.backbones[0], [0]) == pytest.approx(1000 + 3 * 100 + 100)
    plain = with_state(adapters, settings_of(tmp_path, tmp_path, tmp_path, optimizer={"ema_decay": 0}))
    assert trained_bytes(plain, plain.backbones[0], [0]) == pytest.approx(1000 + 2 * 100 + 100)


def test_advice_on_memory_is_for_the_way_that_ranks_share(tmp_path: Path) -> None:
    lora = {"rank": 4}
    plain = job(tmp_path, micro_batch=3)
    assert memory_advice(plain, 2, pipeline=False) == (
        "set ranks.micro_batch = 1 (now 3 images in a pass); or gradient_checkpointing = true; or optimizer.ema_decay "
        '= 0 (no averaged weights); or ranks.parallel = "pipeline" (a part of the weights on each rank); or in another '
        "folder a smaller batch or [lora]"
    )
    given = job(tmp_path, micro_batch=3, profile="p.json").model_copy(update={"gradient_checkpointing": True})
    said = memory_advice(given, 2, pipeline=True)
    assert said.startswith(
        "set no ranks.profile, so that the memory of layers is measured on these GPUs; or more ranks"
    )
    assert said.endswith("; ranks.micro_batch has no effect in a pipeline")
    least = settings_of(
        tmp_path, tmp_path, tmp_path, batch=1, lora=lora, optimizer={"ema_decay": 0}, gradient_checkpointing=True
    )
    assert memory_advice(least, 1, pipeline=False) == "take GPUs with more memory"


def test_without_a_profile_ranks_are_data_parallel(profile: Profile, tmp_path: Path) -> None:
    assert chosen(job(tmp_path), 4, None).why == "data parallel, since no profile is given"
    assert chosen(job(tmp_path, parallel="data"), 4, profile).plan is None


def test_torchruns_variables_name_the_place() -> None:
    assert place_of({}) == Place(0, 1, 0)
    assert place_of({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}) == Place(3, 4, 1)
    with pytest.raises(ConfigurationError, match="RANK, WORLD_SIZE and LOCAL_RANK must be whole numbers"):
        place_of({"RANK": "one"})
