"""The gRPC client's parts: its queries, its sweeps, its messages."""
