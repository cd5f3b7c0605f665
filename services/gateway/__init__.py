"""The public door: decides whether a request is taken, where it queues, and who hears how it goes."""
