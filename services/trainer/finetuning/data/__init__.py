"""Captioned images: their sources, sizes, order and pixels."""
