"""What a run keeps on disk: checkpoints, metrics and plots."""
