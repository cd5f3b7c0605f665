"""`afterimage demo`: a short session with the cache and without it, and the report it leaves."""
