"""`bench.serving.processes`: what a benchmark starts ends with it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from bench.serving.processes import scratch


def test_a_terminated_benchmark_ends_its_blocks() -> None:
    """Its server ran on for hours."""
    former, seen = signal.getsignal(signal.SIGTERM), list[Path]()

    def benchmark() -> None:
        with scratch() as folder:
            seen.append(folder)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5.0)

    with pytest.raises(SystemExit):
        benchmark()
    assert not seen[0].exists()
    assert signal.getsignal(signal.SIGTERM) is former
