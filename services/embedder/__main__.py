"""`python -m services.embedder`: the embedder alone in its process."""

from __future__ import annotations

from services.embedder.service import EmbedderService
from shared.service import main

if __name__ == "__main__":
    main(EmbedderService)
