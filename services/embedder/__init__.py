"""Turns texts and images into unit vectors, and decides which of them the encoder processes in one batch."""
