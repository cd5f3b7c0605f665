"""Fine-tune a diffusers checkpoint on captioned images: `afterimage train run`."""
