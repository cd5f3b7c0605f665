"""The gateway's HTTP API: OpenAI's images and videos, over the same intake, callers and jobs as gRPC."""
