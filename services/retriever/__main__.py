"""`python -m services.retriever`: the retriever alone in its process."""

from shared.runtime.extras import missing_packages_named

if __name__ == "__main__":
    with missing_packages_named("retriever"):
        from services.retriever.service import RetrieverService
        from shared.service.process import main

        main(RetrieverService)
