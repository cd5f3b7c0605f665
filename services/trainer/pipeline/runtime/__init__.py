"""Train a real model by a plan: layers of stock models, measured profiles, and the executor of the planner's table."""
