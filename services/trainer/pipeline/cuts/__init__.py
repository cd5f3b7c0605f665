"""Cut backbones into stages on a chain of devices (DiffusionPipe §4)."""
