"""Decides which requests ride in the next denoising step, and draws them from wherever their plans say."""
