"""The trained checkpoint: its denoiser, its frozen encoders, its samples and its export."""
