"""Replay policies on real models, each through an Afterimage of its own."""
