"""Judge and time the images of exported models: during training, at its end, and on unknown words."""
