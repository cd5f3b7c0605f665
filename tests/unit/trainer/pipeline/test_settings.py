"""Settings of a plan: file and command line, and errors that name the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.trainer.pipeline.settings import read_settings
from shared.domain.errors import ConfigurationError, InvalidRequestError


def test_options_replace_the_file_and_the_profile_is_beside_it(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('profile = "p.json"\nbatch = 64\nstages = [2, 4]\n')
    found = read_settings(tmp_path / "job.toml", {"batch": 128, "partial_batches": False})
    assert (found.profile, found.batch, found.stages) == (tmp_path / "p.json", 128, (2, 4))
    assert found.local_sizes == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("batches = 3", "batches: no such key; did you mean batch?"),
        ("batch = 4\ndevices = 8", "batch must be at least the number of devices, 8 (got 4)"),
        ("group_sizes = [3]", "group_sizes must divide the number of devices, 8 (got 3)"),
        ("self_conditioning = 2", "self_conditioning: Input should be less than or equal to 1 (got 2)"),
        ("batch = ", "cannot be read as TOML"),
    ],
)
def test_a_wrong_file_is_named_with_key_and_rule(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "job.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as raised:
        read_settings(path, {})
    assert str(raised.value).startswith(f"config {path}: ")
    assert said in str(raised.value)


def test_wrong_options_and_a_missing_file_are_named() -> None:
    with pytest.raises(InvalidRequestError, match="beam_width: Input should be"):
        read_settings(None, {"beam_width": 0})
    with pytest.raises(ConfigurationError, match="no such file"):
        read_settings(Path("none.toml"), {})
