"""The models of this worker: its assignment, the loaded models, and the speed of each."""
