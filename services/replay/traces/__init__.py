"""Requests of a replay, their embeddings, and each request's nearest earlier requests."""
