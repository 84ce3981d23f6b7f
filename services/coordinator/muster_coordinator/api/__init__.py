"""The public calls: from a message to its answer.

Unary calls come in through `servicer`; frames of a session stream use the same table of `calls`. What a
request must hold is in `muster_coordinator.validation`; what it means is decided in `muster_core`.
"""
