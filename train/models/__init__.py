"""The model families, one a file."""
