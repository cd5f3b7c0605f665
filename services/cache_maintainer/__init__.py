"""Decides what the cache keeps: finished images become entries, and the least useful states are evicted (NIRVANA
§5.4)."""
