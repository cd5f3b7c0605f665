"""Cache entries, their states and vectors, and the parts of them that the index holds."""
