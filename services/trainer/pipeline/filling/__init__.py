"""Fill bubbles with frozen layers of the next iteration (DiffusionPipe §3.2, §5)."""
