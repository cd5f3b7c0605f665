"""Attacks on the shared cache by callers who send ordinary requests, and how often they succeed."""
