"""The gRPC door: calls, messages and interceptors."""
