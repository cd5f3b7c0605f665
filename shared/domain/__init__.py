"""The nouns of Afterimage and their rules: plain values without a server, an event loop or torch."""
