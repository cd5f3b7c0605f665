"""Renders the scenes that the bundled models learn: backgrounds, sprites, words for them."""
