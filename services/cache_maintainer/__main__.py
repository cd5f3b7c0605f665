"""`python -m services.cache_maintainer`: the cache maintainer alone in its process."""

from __future__ import annotations

from services.cache_maintainer.service import CacheMaintainerService
from shared.service import main

if __name__ == "__main__":
    main(CacheMaintainerService)
