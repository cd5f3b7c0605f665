"""`python -m services.segmenter`: run the segmenter alone in its own process."""

from shared.runtime.extras import missing_packages_named

if __name__ == "__main__":
    with missing_packages_named("segmenter"):
        from services.segmenter.service import SegmenterService
        from shared.service.process import main

        main(SegmenterService)
