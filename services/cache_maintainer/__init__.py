"""Decides what the cache keeps: finished images become entries, the least useful states are evicted (NIRVANA §5.4)."""
