"""`python -m services.embedder`: run the embedder alone in its own process."""

from shared.runtime.extras import missing_packages_named

if __name__ == "__main__":
    with missing_packages_named("embedder"):
        from services.embedder.service import EmbedderService
        from shared.service.process import main

        main(EmbedderService)
