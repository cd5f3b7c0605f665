"""The worker service: choose which requests join the next denoising step, and generate each from the start that its
plan names."""
