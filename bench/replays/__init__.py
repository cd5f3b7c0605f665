"""The tables and plots of bench/replay/: replays of real traces beside the papers' figures."""
