"""Which states and images leave when the cache is full: one module per policy, a shelf they share (NIRVANA §5.4, MoDM
§5.4)."""
