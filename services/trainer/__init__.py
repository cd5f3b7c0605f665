"""Trains the models that ship, on scenes it renders itself, and judges what they draw."""
