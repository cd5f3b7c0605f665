"""Offered load: the project's own session trace, arrival processes, and users that play them."""
