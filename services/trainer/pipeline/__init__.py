"""Plan pipeline-parallel training whose bubbles run the frozen layers of the next iteration (DiffusionPipe)."""
