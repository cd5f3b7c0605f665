"""Floors of a path and measured processes, for the benchmarks of serving."""
