"""The text-to-image models: autoencoder, denoisers, distillation and their training data."""
