"""What a coordinator counts and traces. It watches; nothing that is served depends on it."""
