"""The wire: what may be asked and answered over HTTP and gRPC, its limits and its errors."""
