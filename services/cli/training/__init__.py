"""`afterimage train`: plan pipeline-parallel training."""
