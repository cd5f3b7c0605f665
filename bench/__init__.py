"""Measurements of Afterimage's cost and savings: each `python -m bench.<name>` writes bench/results/<name>.json."""
