"""Training: models on matrix groups, their tasks, and runs that can be resumed."""
