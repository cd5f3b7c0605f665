"""`python -m services.gpu_worker`: run the worker alone in its own process."""

from shared.runtime.extras import missing_packages_named

if __name__ == "__main__":
    with missing_packages_named("gpu_worker"):
        from services.gpu_worker.service import GpuWorkerService
        from shared.service.process import main

        main(GpuWorkerService)
