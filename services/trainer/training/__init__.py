"""Checkpoints, progress, training sessions and the optimizer of every training run."""
