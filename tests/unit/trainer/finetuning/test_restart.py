"""torchrun starts all ranks again after one was killed, and they find each other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_ranks_that_torchrun_starts_again_meet() -> None:
    """They read the addresses of the ranks before: torchrun's store outlives them."""
    script = "tests.unit.trainer.finetuning.restarted"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--module", script]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[4], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("attempt 1 ended with 2 ranks") == 2
