"""Offers one trace to many cache policies, through the code that decides when serving (design §10)."""
