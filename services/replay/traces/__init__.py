"""The requests a replay offers, their embeddings, and each request's nearest earlier requests."""
