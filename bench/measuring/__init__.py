"""Tools that benchmarks share to judge images, record results, plot and print."""
