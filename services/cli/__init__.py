"""The command line: one file per command, over the gRPC calls that every client makes."""

import os

# gRPC's own lines on stderr repeat our one line of error; gRPC reads the variable when it is imported
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
