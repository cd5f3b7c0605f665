"""What a fault run found is the last thing that pytest says, whether it shows a test's output or not."""

from __future__ import annotations

from typing import Protocol

import pytest

from tests.conftest import SAID, VERDICT


class Say(Protocol):
    def __call__(self, line: str, *, last: bool = False) -> None: ...


@pytest.fixture
def say(request: pytest.FixtureRequest) -> Say:
    def said(line: str, *, last: bool = False) -> None:
        request.node.user_properties.append((VERDICT if last else SAID, line))

    return said
