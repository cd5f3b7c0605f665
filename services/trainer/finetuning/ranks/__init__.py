"""The ranks of a run: their process group, and steppers over several of them."""
