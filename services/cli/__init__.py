"""The command line: one file per command, each over the same gRPC calls that any client makes."""

import os

# gRPC's own lines on stderr say again what our one line of error says; set before gRPC is imported
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
