"""`python -m services.cache_maintainer`: run the cache maintainer alone in its own process."""

from shared.runtime.extras import missing_packages_named

if __name__ == "__main__":
    with missing_packages_named("cache_maintainer"):
        from services.cache_maintainer.service import CacheMaintainerService
        from shared.service.process import main

        main(CacheMaintainerService)
