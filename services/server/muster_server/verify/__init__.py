"""The verifier: reads logs from their nodes, without any service, and checks every declared promise."""
