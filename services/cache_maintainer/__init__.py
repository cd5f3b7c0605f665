"""Decides what the cache keeps: finished pictures become entries, the least useful states leave (NIRVANA §5.4)."""
