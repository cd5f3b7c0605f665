"""Trains the bundled text extractor: a small Llama that marks object and background of prompts."""
