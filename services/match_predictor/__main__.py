"""`python -m services.match_predictor`: the match predictor alone in its process."""

from __future__ import annotations

from services.match_predictor.service import MatchPredictorService
from shared.service import main

if __name__ == "__main__":
    main(MatchPredictorService)
