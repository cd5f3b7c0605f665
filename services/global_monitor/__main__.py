"""`python -m services.global_monitor`: run the global monitor alone in its own process."""

from shared.runtime.extras import missing_packages_named

if __name__ == "__main__":
    with missing_packages_named("global_monitor"):
        from services.global_monitor.service import GlobalMonitorService
        from shared.service.process import main

        main(GlobalMonitorService)
