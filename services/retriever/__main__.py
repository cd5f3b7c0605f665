"""`python -m services.retriever`: the retriever alone in its process."""

from __future__ import annotations

from services.retriever.service import RetrieverService
from shared.service import main

if __name__ == "__main__":
    main(RetrieverService)
