"""Programs for developers: shell scripts, and the local stack."""
