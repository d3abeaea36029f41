"""Ablations: edits of effective weights, parsed, applied and measured."""
