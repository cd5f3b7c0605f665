"""`python -m services.match_predictor`: run the match predictor alone in its own process."""

from shared.runtime.extras import missing_packages_named

if __name__ == "__main__":
    with missing_packages_named("match_predictor"):
        from services.match_predictor.service import MatchPredictorService
        from shared.service.process import main

        main(MatchPredictorService)
