"""Parity: a bundle's graph against torch and the reference evaluator."""
