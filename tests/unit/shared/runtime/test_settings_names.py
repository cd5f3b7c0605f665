"""A variable that no setting has is named, with the one that was probably meant."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from shared.runtime.settings import Settings
from shared.runtime.settings_names import RETIRED, misspelt


def test_a_typing_error_is_named_with_the_nearest_setting() -> None:
    assert misspelt(["AFTERIMAGE_MAX_ROW", "PATH"]) == [
        "AFTERIMAGE_MAX_ROW: no such setting, so it has no effect; did you mean AFTERIMAGE_MAX_ROWS?"
    ]
    (far,) = misspelt(["AFTERIMAGE_XYZZY"])
    assert far.endswith("docs/reference/settings.md lists all settings")


def test_a_former_setting_is_named_with_the_value_that_is_constant_now(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in RETIRED:
        monkeypatch.setenv(f"AFTERIMAGE_{name}", "7")
        assert name.lower() not in Settings().model_dump()
    lines = misspelt(f"AFTERIMAGE_{name}" for name in RETIRED)
    assert len(lines) == len(RETIRED)
    assert "AFTERIMAGE_LCBFU_TIE: no longer a setting, so it has no effect; the value is always oldest_use" in lines


def test_what_is_read_is_never_named() -> None:
    settings = [f"AFTERIMAGE_{name.upper()}" for name in Settings.model_fields]
    others = ["AFTERIMAGE_TORCH", "AFTERIMAGE_TEST_REQUIRE", "AFTERIMAGE_LOAD_TRACE", "AFTERIMAGE_SPRITES"]
    assert misspelt([*settings, *others, "afterimage_max_rows"]) == []  # names of variables are read in any case


@pytest.mark.parametrize("program", ["services", "services.retriever"])
def test_a_start_says_so_and_goes_on(program: str) -> None:
    """The command line, and a service alone, which then refuses for a reason of its own."""
    environment = os.environ | {"AFTERIMAGE_EPSILOM": "1"}
    command = [sys.executable, "-m", program] + (["jobs", "list", "--target", "127.0.0.1:1"] * (program == "services"))
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    said = [line for line in ran.stderr.splitlines() if "AFTERIMAGE_EPSILOM" in line]
    assert len(said) == 1, ran.stderr
    assert "AFTERIMAGE_EPSILON" in said[0]
    last = "nothing listens" if program == "services" else "bus_url=inprocess:"
    assert last in ran.stderr.splitlines()[-1]
