"""What a fault run found is the last thing that pytest says, whether it shows a test's output or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

_SAID = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def say(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """A line for the end of the session."""
    return pytestconfig.stash.setdefault(_SAID, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if lines := config.stash.get(_SAID, []):
        terminalreporter.section("faults")
        for line in lines:
            terminalreporter.write_line(line)
