"""Clients of a server: Python over HTTP and gRPC, the command line, the page at /."""
