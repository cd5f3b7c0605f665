"""Eviction policies for states and images, one module each, over a shared state store (NIRVANA §5.4, MoDM §5.4)."""
