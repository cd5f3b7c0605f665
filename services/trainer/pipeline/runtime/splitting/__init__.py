"""Cut stock models of diffusers and transformers into layers, without a change in either library."""
