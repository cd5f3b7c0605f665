"""What two services need; imports no service."""
