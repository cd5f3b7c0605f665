"""One thread for torch in every test, settings that touch nothing outside the test's own folder, and what workers
share out."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog
from xdist.remote import Producer

from shared.runtime.settings import Settings
from tests.memory_files import use_memory
from tests.proofs import is_proof
from tests.side_by_side import SideBySide, in_order

ROOT = Path(__file__).parents[1]

# for this process, for xdist's workers and for whatever a test starts, before anything imports torch
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("AFTERIMAGE_CHECK_SHARE", "0")  # a live check beside a test's jobs would be in its counts
os.environ.setdefault("AFTERIMAGE_HTTP_LISTEN", "")  # several instances run at once
os.environ.setdefault("AFTERIMAGE_VIDEO", "")  # loaded by tests of clips alone
os.environ.setdefault("AFTERIMAGE_SEGMENTER", "")  # its masks would race with those that tests note by hand
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    # the trees stay clean, but a worker's start must not compile two thousand modules each time: 4 s instead of 8 s
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(ROOT / ".cache" / "pycache")
    sys.dont_write_bytecode = False

# examples wait for a busy machine, too, and may share the fixtures of their test
_CHECKS = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture]
hypothesis.settings.register_profile("ours", deadline=None, suppress_health_check=_CHECKS)
hypothesis.settings.load_profile("ours")

SAID, VERDICT = "said", "verdict"
"""Properties of a test: lines for the end of the session, and for its very end. Under xdist another process writes them
than runs the test."""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Embedded mode in a folder of the test's own, on a free port, without a metrics page and without HTTP."""
    return Settings(data_dir=tmp_path / "data", listen="127.0.0.1:0", metrics_listen="", http_listen="")


@pytest.fixture(scope="session", autouse=True)
def _catalogs_are_copied() -> None:
    import shared.catalog
    from tests.new_catalogs import migrate_once

    vars(shared.catalog)["migrate"] = migrate_once


@pytest.fixture(autouse=True)
def _unconfigured_logs() -> None:
    """Whatever a command that was tested before wanted shown."""
    structlog.reset_defaults()


@pytest.fixture
def logs() -> Iterator[list[MutableMapping[str, Any]]]:
    """What is logged during the test, all levels."""
    with structlog.testing.capture_logs() as captured:
        yield captured


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and config.option.basetemp is None:
        use_memory()  # xdist's workers start later and inherit the folder


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SideBySide:
    return SideBySide(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of proofs alone where no proof is to run."""
    left_out = config.option.markexpr == "not proof" and is_proof(os.path.relpath(collection_path, ROOT))
    return True if left_out else None


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the proofs. xdist's workers hand out the groups in the order in which they are collected."""
    for item in items:
        if is_proof(item.nodeid):
            item.add_marker(pytest.mark.proof)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: in_order(item.nodeid))  # stable: within a group as they were


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while the tests' modules are imported: a quarter of that time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Each full collection of garbage would visit what the imports left: half a second for 800,000 objects."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    told = [told for report in reports for told in getattr(report, "user_properties", ())]
    lines = [line for wanted in (SAID, VERDICT) for key, line in told if key == wanted]
    if lines:
        terminalreporter.section("faults")
    for line in dict.fromkeys(lines):  # a test's setup, call and teardown each report them
        terminalreporter.write_line(line)
