"""Requests of different sizes in one forward pass of a UNet, patch by patch (PatchedServe §4)."""
