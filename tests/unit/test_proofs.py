"""The list of proofs names tests that exist."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT
from tests.proofs import PROOFS


@pytest.mark.parametrize("beginning", PROOFS)
def test_a_proof_is_there(beginning: str) -> None:
    path, _, name = beginning.partition("::")
    assert (ROOT / path).exists()
    function = name.partition("[")[0]
    assert not function or f"def {function}" in (ROOT / path).read_text()
