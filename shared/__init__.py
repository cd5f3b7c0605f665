"""Code that at least two services need; it imports no service."""
