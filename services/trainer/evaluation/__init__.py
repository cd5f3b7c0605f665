"""What exported models generate, judged and timed: during training, at its end, and on unknown words."""
