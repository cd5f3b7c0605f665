"""Code that two or more services need; imports no service."""
