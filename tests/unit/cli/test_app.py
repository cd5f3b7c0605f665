"""Every command teaches with an example; every error is one line and an exit code."""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli import app as cli
from services.cli.display.help import flowing
from shared.domain.errors import (
    AfterimageError,
    ConfigurationError,
    InvalidRequestError,
    OverloadedError,
    StorageFullError,
    UnavailableError,
)
from shared.runtime.telemetry import serving_metrics

COMMANDS = [
    ("up",), ("generate",), ("profile",), ("demo",), ("jobs", "list"), ("jobs", "show"), ("jobs", "cancel"),
    ("cache", "stats"), ("cache", "inspect"), ("cache", "purge"), ("cache", "rebuild-index"),
    ("models", "list"), ("models", "check"), ("models", "add"), ("models", "remove"), ("health",), ("monitor",),
    ("doctor",), ("replay",),
    ("train", "plan"), ("train", "simulate"), ("dead-letters", "list"), ("dead-letters", "replay"),
]  # fmt: skip


def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and stderr of `afterimage …`."""
    monkeypatch.setattr(sys, "argv", ["afterimage", *arguments])
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)  # else messages name `python -m pytest`
    with pytest.raises(SystemExit) as left:
        cli.main()
    return int(left.value.code or 0), capfd.readouterr().err


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_teaches_with_an_example(command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli.app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.output
    assert f"afterimage {' '.join(command)}" in result.output


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("jobs", "list", "--target", "127.0.0.1:1"), os.EX_UNAVAILABLE, "nothing listens on 127.0.0.1:1"),
        (
            ("generate", "a fox", "--target", "localhost"),
            os.EX_USAGE,
            "target: must name a port too, as in localhost:50051",
        ),
        (
            ("jobs", "list", "--target", "nohost.invalid:1"),
            os.EX_UNAVAILABLE,
            "the host 'nohost.invalid' has no address",
        ),
        (("health", "--target", "nohost.invalid:1"), os.EX_UNAVAILABLE, "the host 'nohost.invalid' has no address"),
        (("cache", "stats", "--target", "nohost"), os.EX_USAGE, "target: must name a port too"),
        (("monitor", "--once", "--target", "nohost.invalid:1"), os.EX_UNAVAILABLE, "nohost.invalid:1: the host"),
        (("jobs", "list", "--state", "lost"), os.EX_USAGE, "state: must be one of queued, running"),
        (("generate", "a fox", "--size", "big"), os.EX_USAGE, "WIDTHxHEIGHT"),
        (("generate", "a fox", "--out", "/"), os.EX_USAGE, "out: must be a file, not a folder"),
        (("generate", "a fox", "-o", "fox.gif"), os.EX_USAGE, "out: must end in one of .png, .jpg, .jpeg, .webp"),
        (("generate", "a fox", "-o", "/proc/fox.png"), os.EX_USAGE, "out: cannot be written"),
        (("jobs", "show", "01jd", "-o", "/proc/fox.png"), os.EX_USAGE, "out: cannot be written"),
        (("cache", "stats"), 1, "data_dir: there is no"),
        (("cache", "stats"), 1, "nothing listens on 127.0.0.1:1 (`afterimage up` starts it"),
        (("up", "--large", "./nowhere"), os.EX_CONFIG, "model './nowhere': not bundled:NAME"),
        (("models", "check", "./nowhere"), os.EX_CONFIG, "model './nowhere': not bundled:NAME"),
        (("models", "check", "sdxl", "--dtype", "int8"), os.EX_CONFIG, "dtype: Input should be 'auto', 'float32'"),
        (("generate", "a fox", "--cache", "maybe"), os.EX_USAGE, "must be one of auto, read, write, off"),
        (("cache", "purge"), os.EX_USAGE, "exactly one of"),
        (("cache", "purge", "--all", "--tenant", "acme"), os.EX_USAGE, "exactly one of"),
        (("profile", "--alphas", "1.5"), os.EX_USAGE, "above 0 and up to 1"),
        (("up", "--max-rows", "0"), os.EX_CONFIG, "max_rows: Input should be greater than or equal to 1 (got 0)"),
        (("generate", "a fox", "--size", "64x"), os.EX_USAGE, "WIDTHxHEIGHT"),
        (("generate", "a fox", "--video", "--frames", "abc"), os.EX_USAGE, "frames: Input should be a valid integer"),
        (("generate", "a fox", "--video", "--frames", "abc"), os.EX_USAGE, "(got 'abc')"),
        (("jobs", "list", "--limit", "0"), os.EX_USAGE, "limit: Input should be greater than or equal to 1 (got '0')"),
        (("generate",), os.EX_USAGE, "usage: Missing argument"),
        (("generate", "a fox", "--steps"), os.EX_USAGE, "usage: Option '--steps' requires an argument"),
        (("generate", "a fox", "--frame", "3"), os.EX_USAGE, "usage: No such option: --frame"),
        (("jobs", "nope"), os.EX_USAGE, "usage: No such command 'nope'; see `afterimage jobs --help`"),
        (("generate", "a fox", "--strength", "0.5"), os.EX_USAGE, "strength: needs --from, --continue or image"),
        (("up", "--listen", "nonsense"), os.EX_CONFIG, "listen: must be host:port"),
        (("up", "--eviction-policy", "random"), os.EX_CONFIG, "eviction_policy"),
        (("profile", "--pairs", "0"), os.EX_USAGE, "pairs: must be at least 1, or 0 with --mixes or --reuse alone"),
    ],
)
def test_errors_are_one_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    monkeypatch.setenv("AFTERIMAGE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("AFTERIMAGE_LISTEN", "127.0.0.1:1")  # nothing is there
    left, err = run(monkeypatch, capfd, *arguments)
    assert left == code
    assert said in err
    assert err.startswith("afterimage: ")
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "from_job: must be the job of an image (got 'from_job')",
            "--from: must be the job of an image (got 'from_job')",
        ),
        ("from_job 'j1': no such job", "--from 'j1': no such job"),
        ("strength: needs from_job, continue_job or image.", "strength: needs --from, --continue or image."),
        ("out: cannot write /data/from_job/fox.png", "out: cannot write /data/from_job/fox.png"),
        ("out: cannot write from_job.png (No space)", "out: cannot write from_job.png (No space)"),
        ("the clip's from_job is the user's", "the clip's --from is the user's"),
        ("""prompt: (got "it's a from_job"); run `afterimage jobs show from_job`""",) * 2,
    ],
)
def test_an_error_names_options_and_leaves_quotes_and_paths(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], message: str, said: str
) -> None:
    def app() -> None:
        raise AfterimageError(message)

    monkeypatch.setattr(cli, "app", app)
    assert run(monkeypatch, capfd, "generate") == (1, f"afterimage: {said}\n")


def test_a_package_that_is_not_installed_is_named_and_a_module_of_ours_is_a_bug(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    missing = [""]

    def app() -> None:
        raise ModuleNotFoundError(f"No module named {missing[0]!r}", name=missing[0])

    monkeypatch.setattr(cli, "app", app)
    extras = {"torch": "serve", "sklearn.svm": "serve", "huggingface_hub": "serve", "aio_pika": "cluster"}
    for missing[0], extra in {**extras, "matplotlib": "train"}.items():
        package = missing[0].partition(".")[0]
        said = (
            f"afterimage: this command needs the Python package {package}, which is not installed; "
            f"pip install 'afterimage[{extra}]' brings it\n"
        )
        assert run(monkeypatch, capfd, "profile") == (os.EX_CONFIG, said)
    missing[0] = "services.gone"
    with pytest.raises(ModuleNotFoundError):
        cli.main()


@pytest.mark.parametrize("command", [("generate",), ("jobs", "show")], ids=" ".join)
def test_help_says_what_a_picture_without_an_ending_is(command: tuple[str, ...]) -> None:
    shown = " ".join(CliRunner().invoke(cli.app, [*command, "--help"]).output.replace("│", " ").split())
    assert "PNG without an ending" in shown


def test_the_version_is_the_installed_one_s() -> None:
    assert (
        CliRunner().invoke(cli.app, ["--version"]).output == f"afterimage {importlib.metadata.version('afterimage')}\n"
    )


def test_exit_codes_follow_sysexits() -> None:
    assert cli.exit_code(InvalidRequestError("a", "b")) == os.EX_USAGE
    assert cli.exit_code(OverloadedError()) == os.EX_TEMPFAIL
    assert cli.exit_code(StorageFullError()) == os.EX_IOERR
    assert cli.exit_code(UnavailableError()) == os.EX_UNAVAILABLE
    assert cli.exit_code(ConfigurationError()) == os.EX_CONFIG


@pytest.mark.parametrize(
    ("what", "asked"),
    [
        (["--all"], "Purge the whole cache? Images that belong to jobs stay."),
        (["--tenant", "acme"], "Purge tenant acme from the cache?"),
        (["--entry", "01abc"], "Purge entry 01abc from the cache?"),
    ],
)
def test_a_purge_says_whose_cache_and_asks_in_words(what: list[str], asked: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.app, ["cache", "purge", *what, "--data-dir", str(tmp_path)], input="n\n")
    said = " ".join(result.output.split())
    assert said.startswith(f"asking the cache in {tmp_path}")
    assert asked in said
    assert result.exit_code == 1


@pytest.mark.parametrize("command", [("up",), ("generate",), ("cache", "purge"), ("jobs",), ()], ids=" ".join)
def test_help_flows_at_eighty_columns_and_flags_have_no_type(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)  # read from TERMINAL_WIDTH when typer was imported
    monkeypatch.setenv("COLUMNS", "80")
    text = CliRunner().invoke(cli.app, [*command, "--help"]).output
    assert "<bool>" not in text
    prose = [line for line in text.split("─", 1)[0].splitlines()[3:] if line.strip()]
    short = [
        (line, after)
        for line, after in itertools.pairwise(prose)
        if line[1:2].isalpha() and after[1:2].islower() and len(line.rstrip()) + len(after.split()[0]) < 77
    ]
    assert short == []  # a line that ends early, in the middle of a sentence


def test_paragraphs_flow_and_examples_stay() -> None:
    assert flowing("One.\n\n    Two\n    lines.\n\n      afterimage up") == "One.\n\nTwo lines.\n\n  afterimage up"


@pytest.mark.parametrize(
    "command", [("generate", "a fox"), ("jobs", "list"), ("cache", "stats"), ("monitor",), ("health",)]
)
def test_a_web_server_is_none_of_ours(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    with serving_metrics("127.0.0.1:0") as port:  # the address that a newcomer copies by mistake
        code, said = run(monkeypatch, capfd, *command, "--target", f"127.0.0.1:{port}")
    assert (code, len(said.splitlines())) == (os.EX_CONFIG, 1)
    assert f"127.0.0.1:{port}: a server that is not Afterimage listens there: it does not speak gRPC" in said


@pytest.mark.parametrize("command", ["demo", "profile"])
def test_a_folder_that_cannot_be_made_is_said_before_anything_is_drawn(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out, why in ((tmp_path / "file", "File exists"), (tmp_path / "file" / "in", "Not a directory")):
        refused = CliRunner().invoke(cli.app, [command, "--out", str(out)]).exception
        assert isinstance(refused, InvalidRequestError)
        assert str(refused) == f"out: must be a folder ({why}) (got '{out}')"
