"""Which models this worker runs: its assignment, what is loaded, and how fast each is."""
