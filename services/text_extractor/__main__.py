"""`python -m services.text_extractor`: run the text extractor alone in its own process."""

from shared.runtime.extras import missing_packages_named

if __name__ == "__main__":
    with missing_packages_named("text_extractor"):
        from services.text_extractor.service import TextExtractorService
        from shared.service.process import main

        main(TextExtractorService)
