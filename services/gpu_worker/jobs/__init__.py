"""What happens to a task: taken from a lane, claimed, attempted, stored, and finished or handed back."""
