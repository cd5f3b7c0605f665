"""Settings of a run: paths beside the file, and errors that name key and rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.trainer.finetuning.settings import read_run_settings
from shared.domain.errors import ConfigurationError

LEAST = 'model = "bundled:small"\nout = "out/mine"\n'
DATA = '[data]\npath = "photos"\n'


def test_paths_are_beside_the_file_and_options_replace_it(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    text = LEAST.replace("bundled:small", "base") + DATA + '[ranks]\nprofile = "p.json"\n[lora]\n'
    (tmp_path / "job.toml").write_text(text)
    found = read_run_settings(tmp_path / "job.toml", {"iterations": 7})
    assert (found.out, found.data.path) == (tmp_path / "out/mine", str(tmp_path / "photos"))
    assert (found.model, found.ranks.profile) == (str(tmp_path / "base"), tmp_path / "p.json")
    assert (found.iterations, found.rate) == (7, 1e-4)
    (tmp_path / "job.toml").write_text(LEAST + DATA.replace("photos", "scenes"))
    found = read_run_settings(tmp_path / "job.toml", {})
    assert (found.model, found.data.path, found.rate) == ("bundled:small", "scenes", 1e-5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "model: Field required"),
        (LEAST, "data: Field required"),
        (LEAST + "iteration = 3\n" + DATA, "iteration: no such key; did you mean iterations?"),
        (LEAST + DATA + "[optimizer]\nlr = 1\n", "optimizer.lr: no such key; there are rate, schedule, warmup"),
        (LEAST + DATA + "[lora]\nranks = 1\n", "lora.ranks: no such key; did you mean rank?"),
        (LEAST + DATA + "[optimizer]\nrate = 2\n", "optimizer.rate: Input should be less than or equal to 1 (got 2)"),
        (LEAST + DATA + "[optimizer]\nbetas = [1, 0]\n", "optimizer: betas must be at least 0 and below 1"),
        (LEAST + "precision = 'int8'\n" + DATA, "precision: Input should be 'auto', 'fp32', 'bf16' or 'fp16'"),
        (LEAST + DATA + "[optimizer]\nclip_norm = inf\n", "optimizer.clip_norm: Input should be a finite number"),
        ("model = ", "cannot be read as TOML"),
    ],
)
def test_a_wrong_file_is_named_with_key_and_rule(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "job.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as raised:
        read_run_settings(path, {})
    assert str(raised.value).startswith(f"config {path}: ")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_batch_has_a_row_for_each_rank(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("batch = 2\n" + LEAST + DATA)
    with pytest.raises(ConfigurationError, match=r"batch: must be at least the number of ranks, 4 \(got 2\)"):
        read_run_settings(tmp_path / "job.toml", {}).check_ranks(4)


def test_a_path_with_dots_names_the_same_run(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    job = tmp_path / "jobs" / "job.toml"
    job.write_text('model = "bundled:small"\nout = "out"\n[data]\npath = "photos"\n')
    dotted = tmp_path / "jobs" / ".." / "jobs" / "job.toml"
    assert read_run_settings(dotted, {}) == read_run_settings(job, {})
