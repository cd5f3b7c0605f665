"""Profiles of models and clusters, and what layers and stages cost."""
