"""The development cluster: embedded servers and role processes on one machine."""
