"""The gRPC contract: one .proto file per service, with its generated code (`make protos`)."""
