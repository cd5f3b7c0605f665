"""What Afterimage costs and saves, measured: each `python -m bench.<name>` writes bench/results/<name>.json."""
