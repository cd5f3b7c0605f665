"""What a replay found: figures, intervals, plots and the page that opens from disk."""
