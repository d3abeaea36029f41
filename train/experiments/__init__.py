"""Experiments of the papers that need no training run."""
