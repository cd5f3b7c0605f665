"""The wire contract: one .proto per service, generated code beside it (`make protos`)."""
