"""Finds where a finished clip shows its object and its background, and decides which cells of its latent each holds."""
