"""Queries, once for HTTP and gRPC: generate, score, compare, trials."""
