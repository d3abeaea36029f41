"""Sweeps: grids of ablations as jobs that are kept, watched and resumed."""
