"""The all-in-one process, forked anew for every line on stdin, so that a life costs no imports; prints its pid, and a
line when it has ended.

A prompt with the words in KILLS kills it in the fifth step, as one that runs out of memory would.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

import torch

from services.cli.embedded import all_services
from services.embedder.encoder import Encoder, encoder_folder
from services.gpu_worker.engine.rows import Row, Stepped
from services.gpu_worker.families.noop import NoopFamily
from shared.runtime import telemetry
from shared.runtime.loop import run
from shared.runtime.settings import Settings
from shared.service.process import serve

KILLS = "kills its worker"
STEP = NoopFamily.step


def _step(family: NoopFamily, rows: Sequence[Row]) -> list[Stepped]:
    if any(KILLS in row.task.prompt and row.done >= 5 for row in rows):
        os.kill(os.getpid(), signal.SIGKILL)
    return STEP(family, rows)


def main() -> None:
    setattr(NoopFamily, "step", _step)  # noqa: B010 — the service's own code runs unchanged around it
    settings = Settings.model_validate_json(sys.argv[1])
    torch.set_num_threads(1)  # a fork takes no threads along
    all_services()  # imports everything, and the encoder what it imports when it loads
    Encoder(encoder_folder(settings.encoder))
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            telemetry.configure_logging("error")
            run(serve(all_services(settings.workers), settings))
            os._exit(0)
        print(pid, flush=True)  # noqa: T201 — the pipe to the test
        os.waitpid(pid, 0)
        print("ended", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
