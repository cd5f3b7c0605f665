"""Generate load: the project's own session trace, arrival processes, and Locust users that play them."""
