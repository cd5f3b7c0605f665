"""Decides which worker runs which model (MoDM §5.3)."""
