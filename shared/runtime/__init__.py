"""What every process stands on: settings, clock, telemetry, gRPC errors and addresses, the data directory."""
