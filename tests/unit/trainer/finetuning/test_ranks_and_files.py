"""What a run reads: files that change, and files that its ranks read differently."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli import app as cli
from services.trainer.finetuning.data.index import make_index, source_of
from services.trainer.finetuning.settings import read_run_settings
from shared.domain.errors import AfterimageError
from shared.models.weights import hashed_files
from tests.unit.trainer.finetuning.forked_runs import Run, ended, first_line


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
