"""The HTTP client's parts: its calls, its events, its sweeps."""
