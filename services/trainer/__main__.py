"""`python -m services.trainer`: trains, exports and judges the bundled models."""

from shared.runtime.extras import missing_packages_named

if __name__ == "__main__":
    with missing_packages_named("trainer"):
        from services.trainer.command import main

        main()
