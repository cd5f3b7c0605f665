"""Render the scenes that the bundled models learn: backgrounds, sprites, and words for them."""
