"""The command line: one file per command, over the gRPC calls that every client makes."""

import os

# gRPC's log lines on stderr would repeat the command's error line; gRPC reads the variable when it is imported
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
