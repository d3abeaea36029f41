"""The Open Inference Protocol of KServe and Triton, over HTTP and gRPC."""
