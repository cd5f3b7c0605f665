"""`python -m services.global_monitor`: the global monitor alone in its process."""

from __future__ import annotations

from services.global_monitor.service import GlobalMonitorService
from shared.service import main

if __name__ == "__main__":
    main(GlobalMonitorService)
