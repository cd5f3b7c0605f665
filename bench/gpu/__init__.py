"""Real model families on a GPU: speed, memory, live values."""
