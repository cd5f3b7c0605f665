"""The gateway's HTTP API: OpenAI's images, over the same intake, callers and jobs as gRPC."""
