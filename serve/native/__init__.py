"""The C library: its sources, its build and its loader."""
