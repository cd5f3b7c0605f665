"""Whole runs of `afterimage train run`: one rank, two ranks, kills, hangs, another number of ranks after them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch.nn.utils import parameters_to_vector
from typer.testing import CliRunner

from services.cli import app as cli
from services.trainer.finetuning.data.index import make_index, source_of
from services.trainer.finetuning.model.checkpoint import load_base
from services.trainer.finetuning.run import DeviceMemoryError, train
from services.trainer.finetuning.saving.lock import locked
from services.trainer.finetuning.saving.run_folder import RunFolder
from services.trainer.finetuning.settings import read_run_settings
from shared.domain.errors import AfterimageError
from shared.models.card_lookup import find_card
from shared.models.weights import hashed_files
from tests.forking import Fork, shared_parent

LIMIT_S = 240.0
"""Longest run of a test; it takes a few seconds alone on a core."""
JOB = """
model = "{base}"
out = "out"
iterations = {iterations}
batch = 4
self_conditioning = 0.5
[data]
path = "{photos}"
resolution = 32
[optimizer]
rate = 1e-3
warmup = 2
[validation]
every = 4
samples_every = 8
prompts = ["a square"]
steps = 2
[checkpoints]
every = 2
keep = 2
[ranks]
timeout_s = {timeout_s}
"""


class Run:
    """A run in a folder of its own, started in processes that are forked."""

    def __init__(self, folder: Path, base: Path, photos: Path, iterations: int = 8, timeout_s: float = 60) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.files = folder, RunFolder(folder / "out")
        self.job = folder / "job.toml"
        self._keys = {"base": base, "photos": photos}
        self.write(iterations, timeout_s)

    def write(self, iterations: int = 8, timeout_s: float = 60) -> None:
        self.job.write_text(JOB.format(**self._keys, iterations=iterations, timeout_s=timeout_s))

    def start(self, world: int = 1, jobs: Sequence[Path] = ()) -> list[Fork]:
        """Start the command on every rank, with the variables that torchrun sets; `jobs`: each rank's own file, in
        whose folder the rank works."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = []
        for rank in range(world):
            log = self.folder / f"{rank}.log"
            log.touch()
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port}
            environment = os.environ | {name: str(value) for name, value in place.items()}
            environment |= {"MASTER_ADDR": "127.0.0.1", "AFTERIMAGE_DEVICE": "cpu"}
            arguments = ["train", "run", str(jobs[rank] if jobs else self.job)]
            how = {
                "cwd": str(jobs[rank].parent if jobs else self.folder),
                "log": str(log),
                "environment": environment,
                "arguments": arguments,
            }
            ranks.append(Fork(shared_parent(), "services", **how))
        return ranks

    def finish(self, world: int = 1) -> str:
        """Run to the end and return what the first rank said."""
        codes = [ended(one) for one in self.start(world)]
        said = (self.folder / "0.log").read_text()
        assert codes == [0] * world, said
        return said

    def losses(self) -> dict[int, float]:
        return {row["iteration"]: row["loss"] for row in self.files.rows() if "loss" in row}

    def reached(self, iteration: int) -> None:
        until(lambda: max(self.losses(), default=0) >= iteration)


def ended(one: Fork) -> int:
    until(lambda: one.poll() is not None)
    code = one.poll()
    assert code is not None
    return code


def until(true: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.02)


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


def test_every_rank_names_its_own_error(base: Path, photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    run = Run(tmp_path / "run", base, tmp_path / "photos")
    settings = read_run_settings(run.job, {})
    run.files.begin(settings)
    source = source_of(settings.data, 0)
    make_index(source, tmp_path / "index", lambda line: None)
    for image in (tmp_path / "photos").glob("*.png"):
        image.unlink()
    model = {path.relative_to(base).as_posix(): path for path in hashed_files(base)}
    for field, files in (("model", model), ("data.path", {str(path): path for path in source.files()})):
        run.files.check_files(field, files, lambda line: None)
    shutil.copy(tmp_path / "index" / "index.jsonl", run.files.folder)
    assert [ended(one) for one in run.start(world=2)] == [os.EX_UNAVAILABLE] * 2
    for rank in range(2):
        said = (run.folder / f"{rank}.log").read_text()
        assert re.search(r"^afterimage: data\.path: \d+\.png can no longer be read: ", said, re.MULTILINE), said


def test_one_rank_names_what_ranks_read_differently(base: Path, photos: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "run", base, photos)
    other = run.folder / "other.toml"
    other.write_text(run.job.read_text().replace("rate = 1e-3", "rate = 2e-3"))
    assert [ended(one) for one in run.start(world=2, jobs=(run.job, other))] == [os.EX_CONFIG] * 2
    assert first_line(run).startswith("afterimage: optimizer.rate: rank 1 has 0.002, and the first rank 0.001; ")
    assert not (run.folder / "1.log").read_text()
    assert not run.files.folder.exists()
    run.job.write_text(run.job.read_text() + 'profile = "none.json"\n')
    assert [ended(one) for one in run.start(world=2)] == [os.EX_CONFIG] * 2
    assert f"afterimage: profile {run.folder / 'none.json'}: no such file\n" in (run.folder / "0.log").read_text()
    assert not (run.folder / "1.log").read_text()  # the first rank alone reads it


def test_ranks_with_other_weights_under_the_same_path_are_refused(base: Path, photos: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "run", base, photos)
    jobs = [tmp_path / name / "job.toml" for name in ("one", "two")]
    for job in jobs:
        shutil.copytree(base, job.parent / "model")
        text = run.job.read_text().replace(str(base), "/proc/self/cwd/model")  # as on two machines
        job.write_text(text.replace('"out"', f'"{run.folder / "out"}"'))
    scheduler = jobs[1].parent / "model" / "scheduler" / "scheduler_config.json"
    scheduler.write_text(scheduler.read_text() + " ")
    assert [ended(one) for one in run.start(world=2, jobs=jobs)] == [os.EX_CONFIG] * 2
    assert first_line(run).startswith(
        "afterimage: model: /proc/self/cwd/model: rank 1 reads another one than the first"
    )


def test_a_second_run_in_the_folder_is_refused(whole: Run) -> None:
    with locked(whole.files.folder, print), pytest.raises(AfterimageError, match=r"out: another run trains in \S+ "):
        train(read_run_settings(whole.job, {}), print)


def test_changed_images_are_encoded_again_and_end_a_run_that_has_seen_others(
    base: Path, photos: Path, tmp_path: Path
) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    run = Run(tmp_path / "run", base, tmp_path / "photos", iterations=2)
    run.job.write_text(run.job.read_text().replace("[data]", "[data]\nkeep_encoded = true"))

    def start(*more: str) -> str:
        return CliRunner().invoke(cli.app, ["train", "run", str(run.job), *more], catch_exceptions=False).output

    def kept() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in run.files.encoded.rglob("latents/*/*.safetensors")}

    start("--estimate")
    before = kept()
    assert before
    start("--estimate")
    assert kept() == before
    for number in range(12):  # every image is another one's now
        shutil.copy(photos / f"{(number + 3) % 12}.png", tmp_path / "photos" / f"{number}.png")
    start("--estimate")
    assert all(kept()[name] != content for name, content in before.items())
    assert "wrote " in start()
    shutil.copytree(photos, tmp_path / "photos", dirs_exist_ok=True)
    with pytest.raises(AfterimageError, match=r"data\.path: changed since the run in \S+ began: \S+0.png has other"):
        start("--iterations", "4")


def first_line(run: Run) -> str:
    return next(line for line in (run.folder / "0.log").read_text().splitlines() if line.startswith("afterimage: "))


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
