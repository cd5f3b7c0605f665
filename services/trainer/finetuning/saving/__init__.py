"""Files of a run: checkpoints, metrics and plots."""
