"""Results of a replay: figures, intervals, plots and a page that opens from disk."""
