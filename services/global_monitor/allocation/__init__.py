"""The allocation: number of workers per model, and their choice; both modes, the PID, and the cost of a switch (MoDM
§5.3)."""
