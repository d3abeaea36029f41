"""The export: from a checkpoint to a bundle that was found to compute the same."""
