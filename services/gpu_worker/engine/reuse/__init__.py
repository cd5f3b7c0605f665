"""Blocks that take their output of an earlier step, patch by patch (PatchedServe §5)."""
