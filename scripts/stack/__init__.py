"""Servers and services as private processes, for a local stack, for tests and for fault runs."""
