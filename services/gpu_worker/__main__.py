"""`python -m services.gpu_worker`: the worker alone in its process."""

from __future__ import annotations

from services.gpu_worker.service import GpuWorkerService
from shared.service import main

if __name__ == "__main__":
    main(GpuWorkerService)
