"""Replay one trace through many cache policies, with the code that decides in serving (docs/replay.md)."""
