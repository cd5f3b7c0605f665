"""What the benchmarks of serving share: floors of a path, and processes."""
