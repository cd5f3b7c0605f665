"""How many workers run which model, and which ones: both modes, the PID, and what a switch costs (MoDM §5.3)."""
