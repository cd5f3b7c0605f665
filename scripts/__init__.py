"""What a developer runs: shell scripts, and the local stack."""
