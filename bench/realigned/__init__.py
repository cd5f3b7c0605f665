"""Realignment of reused starts, and the images generated with it, for `bench.realignment`."""
