"""Generated stubs of Muster's gRPC services; see protos/ for the sources."""
