"""`python -m services.trainer`: train, export and judge the bundled models."""

from shared.runtime.extras import missing_packages_named

if __name__ == "__main__":
    with missing_packages_named("trainer"):
        from services.trainer.command import main

        main()
