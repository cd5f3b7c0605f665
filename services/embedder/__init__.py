"""Decides which texts and pictures ride together through the encoder, and turns them into unit vectors."""
