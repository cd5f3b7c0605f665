"""The base of every process: settings, clock, telemetry, gRPC errors and addresses, the data directory."""
