"""What every training run shares: checkpoints, progress, sittings, the optimizer."""
