"""The global monitor: assign models to workers (MoDM §5.3)."""
