"""How a benchmark judges, records, plots and prints."""
