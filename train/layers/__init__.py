"""Layers that several families are made of."""
