"""The server: bundles in, text and answers to ablation queries out, over HTTP and gRPC."""
