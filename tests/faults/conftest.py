"""What a fault run found is the last thing that pytest says, whether it shows a test's output or not."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest


@dataclass
class Said:
    """Lines for the end of the session."""

    lines: list[str] = field(default_factory=list)
    last: str = ""

    def __call__(self, line: str) -> None:
        self.lines.append(line)


_SAID = pytest.StashKey[Said]()


@pytest.fixture(scope="session")
def say(pytestconfig: pytest.Config) -> Said:
    return pytestconfig.stash.setdefault(_SAID, Said())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    said = config.stash.get(_SAID, Said())
    if said.lines:
        terminalreporter.section("faults")
    for line in filter(None, (*said.lines, said.last)):
        terminalreporter.write_line(line)
