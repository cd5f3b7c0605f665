"""Training of the motion model: clips of moving scenes as latents, the denoiser, and its training."""
