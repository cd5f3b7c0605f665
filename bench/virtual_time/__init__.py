"""Fleets simulated in virtual time: throughput, switches, late answers (MoDM §7)."""
