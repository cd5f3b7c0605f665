"""`afterimage demo`: a short session with the cache and without it, and its report."""
