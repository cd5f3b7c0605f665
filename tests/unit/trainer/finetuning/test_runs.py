"""Whole runs of `afterimage train run`: one rank, two ranks, kills, hangs, another number of ranks after them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from torch.nn.utils import parameters_to_vector
from typer.testing import CliRunner

from services.cli import app as cli
from services.trainer.finetuning.model.checkpoint import load_base
from services.trainer.finetuning.run import DeviceMemoryError, train
from services.trainer.finetuning.saving.lock import locked
from services.trainer.finetuning.settings import read_run_settings
from shared.domain.errors import AfterimageError
from shared.models.card_lookup import find_card
from tests.unit.trainer.finetuning.forked_runs import Run, ended, first_line


@pytest.fixture(scope="module")
def whole(base: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of one rank that nothing disturbed."""
    run = Run(tmp_path_factory.mktemp("whole"), base, photos)
    run.finish()
    return run


@pytest.fixture
def disturbed(base: Path, photos: Path, tmp_path: Path) -> Run:
    return Run(tmp_path / "run", base, photos)


def test_a_run_writes_a_model_a_plot_samples_and_what_to_do_next(whole: Run, base: Path) -> None:
    said = (whole.folder / "0.log").read_text()
    out = whole.folder / "out"
    for part in (
        "11 images (32x32: ", "1 held out; ", "parameters are trained", "time: about ", "validation loss ",
        f"wrote {out}: model 'out', weights ", f"afterimage up --large {out}", f"afterimage profile --model {out}",
    ):  # fmt: skip
        assert part in said
    assert list(whole.losses()) == list(range(1, 9))
    validation = [row for row in whole.files.rows() if "validation_loss" in row]
    assert [row["iteration"] for row in validation] == [4, 8]
    names = {str(path.relative_to(whole.files.folder)) for path in whole.files.folder.rglob("*")}
    assert {"loss.png", "settings.json", "samples/00000008.png", "checkpoints/00000006", "checkpoints/00000008"} < names
    card = find_card(str(out))
    assert card.about == "large, fine-tuned on 11 images for 8 iterations"
    assert card.weights_hash != find_card(str(base)).weights_hash


def test_a_killed_run_goes_on_to_the_same_losses(whole: Run, disturbed: Run) -> None:
    [one] = disturbed.start()
    disturbed.reached(3)
    os.kill(one.pid, signal.SIGKILL)
    assert ended(one) == -signal.SIGKILL
    said = disturbed.finish()
    assert "goes on after iteration" in said
    assert disturbed.losses() == whole.losses()
    assert find_card(str(disturbed.folder / "out")).weights_hash == find_card(str(whole.folder / "out")).weights_hash


def test_a_run_stops_at_a_signal_with_a_checkpoint(whole: Run, disturbed: Run) -> None:
    said = list[str]()

    def interrupted(line: str) -> None:
        said.append(line)
        if line.startswith("iteration 1 of 8: loss "):
            signal.raise_signal(signal.SIGINT)

    settings = read_run_settings(disturbed.job, {})
    assert train(settings, interrupted).stopped_by == signal.SIGINT
    assert said[-1] == "stopped after iteration 1, with a checkpoint; the same command goes on from it"
    assert not (disturbed.folder / "out" / "model_index.json").exists()
    assert (disturbed.files.folder / "loss.png").exists()
    assert train(settings, interrupted).stopped_by == 0
    assert f"goes on after iteration 1, from {disturbed.files.checkpoints}" in said
    assert disturbed.losses() == whole.losses()


def lose_second_rank(run: Run, after: int, how: signal.Signals) -> None:
    """Start two ranks; stop or kill the second after so many iterations, until the first has ended by itself."""
    first, second = run.start(world=2)
    run.reached(after)
    os.kill(second.pid, how)
    try:
        assert ended(first) == os.EX_UNAVAILABLE
    finally:
        os.kill(second.pid, signal.SIGKILL)
    assert ended(second) == -signal.SIGKILL


def test_two_ranks_find_a_hanging_one_and_go_on_to_the_losses_of_one(whole: Run, disturbed: Run) -> None:
    disturbed.write(iterations=8, timeout_s=8)
    lose_second_rank(disturbed, 4, signal.SIGSTOP)
    assert "rank 0: another rank ended, or did not answer within ranks.timeout_s = 8 s" in first_line(disturbed)
    newest = max(path for path in disturbed.files.checkpoints.iterdir() if path.name.isdigit())
    file = next(newest.glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-1])
    said = disturbed.finish(world=2)
    assert f"checkpoint {newest} is broken: " in said
    assert "2 ranks: data parallel, since no profile is given" in said
    assert disturbed.losses() == pytest.approx(whole.losses(), abs=1e-5)
    disturbed.write(iterations=1000)
    ranks = disturbed.start(world=2)
    disturbed.reached(9)
    os.kill(ranks[1].pid, signal.SIGTERM)
    assert [ended(one) for one in ranks] == [128 + signal.SIGTERM] * 2
    done = max(disturbed.losses())
    disturbed.write(iterations=done + 2)
    assert f"goes on after iteration {done:,}" in disturbed.finish()  # on one rank
    assert max(disturbed.losses()) == done + 2


def test_a_pipeline_of_two_ranks_has_the_losses_of_one(whole: Run, disturbed: Run, base: Path) -> None:
    text = disturbed.job.read_text() + 'parallel = "pipeline"\n'
    kept = text.replace("[data]", "[data]\nkeep_encoded = true")
    disturbed.job.write_text(kept.replace("timeout_s = 60", "timeout_s = 8"))
    lose_second_rank(disturbed, 3, signal.SIGSTOP)
    disturbed.job.write_text(text.replace("[data]", "gradient_checkpointing = true\n[data]"))
    lose_second_rank(disturbed, 5, signal.SIGKILL)
    said = disturbed.finish(world=2)
    assert "goes on after iteration" in said
    assert said.count("measuring the layers") == 2  # the profile of the first start has no encoders
    assert "2 ranks: a pipeline with S = 2, " in said
    assert "The planner: A pipeline is not worth it: " in said
    assert disturbed.losses() == pytest.approx(whole.losses(), abs=1e-5)
    names = {path.name for path in disturbed.files.folder.iterdir()}
    assert {"profile.json", "plan.json", "schedule.svg", "loss.png", "samples"} < names
    folders = (disturbed.folder / "out", whole.folder / "out", base)
    tuned, other, before = (load_base(str(folder)).denoiser for folder in folders)
    for part in ("conv_in", "mid_block", "conv_out"):  # of the first rank and of the second
        ours, theirs, start = (parameters_to_vector(getattr(one, part).parameters()) for one in (tuned, other, before))
        assert (ours - theirs).norm() < 0.1 * (theirs - start).norm(), part  # AdamW amplifies rounding


def test_a_second_run_in_the_folder_is_refused(whole: Run) -> None:
    with locked(whole.files.folder, print), pytest.raises(AfterimageError, match=r"out: another run trains in \S+ "):
        train(read_run_settings(whole.job, {}), print)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("batch = 4", "batch = 5", r"out: \S+ holds a run with another batch \(4\)"),
        ('[data]\npath = "', '[data]\npath = "/dev/..', r"another data\.path"),
        ("resolution = 32", "resolution = 31", r"another data\.resolution"),
    ],
)
def test_another_run_in_the_same_folder_is_refused(whole: Run, old: str, new: str, said: str) -> None:
    (whole.folder / "other.toml").write_text(whole.job.read_text().replace(old, new))
    with pytest.raises(AfterimageError, match=said):
        CliRunner().invoke(cli.app, ["train", "run", str(whole.folder / "other.toml")], catch_exceptions=False)


def test_the_folder_of_the_model_is_no_place_for_the_run(whole: Run, tmp_path: Path) -> None:
    """The export replaced the model's files, and then read the index that it had removed."""
    settings = read_run_settings(whole.job, {})
    with pytest.raises(AfterimageError, match=r"out: \S+ is the folder of the model; name another one"):
        train(settings.model_copy(update={"out": Path(settings.model)}), print)
    assert (Path(settings.model) / "model_index.json").exists()


def test_an_estimate_does_not_train(whole: Run, tmp_path: Path) -> None:
    arguments = ["train", "run", str(whole.job), "--out", str(tmp_path / "new"), "--iterations", "1000", "--estimate"]
    said = CliRunner().invoke(cli.app, arguments, catch_exceptions=False).output
    assert "memory of a rank: about " in said
    assert "for 1,000 iterations of 4 images" in said
    assert not (tmp_path / "new" / "training" / "metrics.jsonl").read_text()
    assert json.loads((tmp_path / "new" / "training" / "settings.json").read_text())["iterations"] == 1000


def test_too_little_memory_is_one_error_with_what_to_change(disturbed: Run) -> None:
    def full(line: str) -> None:
        if "parameters are trained on it" in line:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with pytest.raises(
        DeviceMemoryError, match=r"^rank 0: the GPU has too little memory \(CUDA out of memory\): set ranks"
    ):
        train(read_run_settings(disturbed.job, {}), full)


def test_the_bundled_small_is_fine_tuned_with_its_card(photos: Path, tmp_path: Path) -> None:
    job = tmp_path / "small.toml"
    short = 'model = "bundled:small"\nout = "Tuned"\niterations = 2\nbatch = 2\n'
    job.write_text(f'{short}[data]\npath = "{photos}"\nresolution = 64\n')
    said = CliRunner().invoke(cli.app, ["train", "run", str(job)], catch_exceptions=False).output
    assert "small: all weights, on cpu" in said
    small, tuned = find_card("bundled:small"), find_card(str(tmp_path / "Tuned"))
    assert (tuned.name, tuned.auto_steps, tuned.k_table) == ("tuned", (), "")
    assert (tuned.guidance_max, tuned.sizes, tuned.scheduler_config) == (1, small.sizes, small.scheduler_config)
    assert tuned.weights_hash != small.weights_hash
    sizes = [
        (folder / "unet" / "diffusion_pytorch_model.safetensors").stat().st_size
        for folder in (small.folder, tuned.folder)
    ]
    assert sizes[0] == sizes[1]
