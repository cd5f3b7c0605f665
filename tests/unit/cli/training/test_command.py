"""`afterimage train plan` and `simulate`: figures, files, errors in one line, and no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli import app as cli
from services.trainer.pipeline.costs.profile_file import write_profile
from services.trainer.pipeline.costs.uniform import uniform_profile
from shared.domain.errors import AfterimageError


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli.app, ["train", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_simulate_prints_the_figures_of_fig_4() -> None:
    shape = ("--frozen-share", "0.4384", "--stages", "4", "--micro-batches", "4")
    found = json.loads(run("simulate", *shape, "--no-fill", "--json"))
    assert round(found["bubble_of_iteration"], 3) == 0.343
    assert round(found["bubble_of_frozen"], 3) == 1.711
    bubbles = found["plan"]["iterations"][0]["bubbles"]
    assert (bubbles[0]["start_s"], bubbles[0]["devices"], bubbles[0]["runs"]) == (0, [1, 2, 3], [])
    idle = sum((one["end_s"] - one["start_s"]) * len(one["devices"]) for one in bubbles)
    assert round(idle / 4, 9) == 0.75  # (S − 1) / M of a second
    filled = json.loads(run("simulate", *shape, "--json"))
    assert filled["bubble_of_iteration"] < 0.18
    assert filled["bubble_of_iteration_unfilled"] == found["bubble_of_iteration"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_profile(uniform_profile(0.9, 4, 64), tmp_path / "p.json")
    return tmp_path / "p.json"


def test_plan_prints_a_table_and_a_verdict_and_writes_two_files(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "plan"
    text = run(
        "plan", "--profile", str(model), "--batch", "32", "--devices", "4", "--stages", "2,4", "--micro-batches", "4",
        "--out", str(out),
    )  # fmt: skip
    for name in ("DiffusionPipe", "SPP-like, without filling", "GPipe", "DDP", "FSDP", "A pipeline is not worth it"):
        assert name in text
    assert json.loads((out / "plan.json").read_text())["plan"]["micro_batches"] == 4
    assert (out / "schedule.svg").read_text().startswith("<svg ")


def test_plan_reads_a_config_and_prints_json(model: Path, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('profile = "p.json"\nbatch = 32\ndevices = 2\nmicro_batches = [2]\n')
    found = json.loads(run("plan", str(tmp_path / "job.toml"), "--no-fill", "--json"))
    assert [one["name"] for one in found["systems"]] == ["pipeline without filling", "GPipe", "DDP", "FSDP"]
    assert found["settings"]["devices"] == 2


def test_simulate_draws_a_profile(model: Path, tmp_path: Path) -> None:
    text = run(
        "simulate", "--profile", str(model), "--stages", "2", "--micro-batches", "2", "--batch", "16",
        "--svg", str(tmp_path / "one.svg"),
    )  # fmt: skip
    assert "bubble_of_iteration" in text
    assert "micro-batch 1" in (tmp_path / "one.svg").read_text()


def test_simulate_reads_the_config_of_plan(model: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(
        'profile = "p.json"\nbatch = 32\ndevices = 4\nmicro_batches = [2]\ngroup_sizes = [2]\nfill = false\n'
    )
    found = json.loads(run("simulate", str(job), "--stages", "2", "--json"))
    plan = found["plan"]
    assert (plan["stages"], plan["micro_batches"], plan["group"], plan["groups"]) == (2, 2, 2, 2)
    assert found["bubble_of_iteration"] == found["bubble_of_iteration_unfilled"]
    assert (
        json.loads(run("simulate", str(job), "--stages", "2", "--batch", "16", "--json"))["plan"]["batch_of_group"] == 8
    )
    job.write_text('profile = "p.json"\nstages = [2, 4]\n')
    with pytest.raises(AfterimageError, match="stages: a simulation needs one number; the file has 2, 4"):
        run("simulate", str(job))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("simulate",), "frozen-share: give either --frozen-share or --profile"),
        (("simulate", "--frozen-share", "1", "--batch", "8"), "batch: --batch and --devices need a --profile"),
        (("plan",), "profile: name a profile with --profile, or in the config file"),
        (("plan", "--stages", "two"), "stages: must be whole numbers separated by commas, as in 2,4 (got 'two')"),
        (("plan", "--profile", "none.json"), "profile none.json: no such file"),
        (("plan", "--batch", "0"), "batch: Input should be greater than or equal to 1 (got 0)"),
    ],
)
def test_a_wrong_call_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(AfterimageError) as raised:
        run(*arguments)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_stages_that_do_not_fit_the_profile_are_named(model: Path) -> None:
    with pytest.raises(AfterimageError, match="stages: S must divide the devices"):
        run("simulate", "--profile", str(model), "--stages", "5", "--batch", "20")


def test_the_planner_imports_no_torch() -> None:
    """The commands work in the base install; importing them must stay fast."""
    program = (
        "import sys, services.cli.training.command, services.trainer.pipeline.comparison, "
        "services.trainer.pipeline.drawing, services.trainer.pipeline.costs.uniform\n"
        "print([one for one in ('torch', 'diffusers', 'matplotlib', 'scipy') if one in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
