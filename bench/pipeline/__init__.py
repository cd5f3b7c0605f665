"""Profiles of published models for the pipeline planner, and figures that are simulated with them."""
