"""gRPC as every process uses it: the server and what guards it, channels to others, certificates."""
