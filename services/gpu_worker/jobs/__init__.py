"""A task's life in the worker: received from a lane, claimed, attempted, stored, then finished or handed back."""
