"""The composition: roles as processes, the development cluster, the verifier of the log and the demo."""
