"""Bundles in memory and the sessions that run them."""
