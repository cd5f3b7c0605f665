"""The command line: one file per command, each over the same gRPC calls that any client makes."""
