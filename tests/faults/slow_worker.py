"""A gpu_worker whose steps take longer without taking the processor: FAULTS_STEP_MS more for each."""

from __future__ import annotations

import os
import runpy
import threading
from collections.abc import Sequence

from services.gpu_worker.engine.rows import Row, Stepped
from services.gpu_worker.families.pipeline import PipelineFamily

PAUSE = "FAULTS_STEP_MS"


def main() -> None:
    pause_s, step = float(os.environ[PAUSE]) / 1000, PipelineFamily.step

    def slowly(family: PipelineFamily, rows: Sequence[Row]) -> list[Stepped]:
        threading.Event().wait(pause_s)  # on the engine's own thread; libfaketime breaks time.sleep
        return step(family, rows)

    setattr(PipelineFamily, "step", slowly)  # noqa: B010 — the service's own code runs unchanged around it
    runpy.run_module("services.gpu_worker", run_name="__main__")


if __name__ == "__main__":
    main()
