"""Cache entries, their states and vectors, and what of them the index holds."""
