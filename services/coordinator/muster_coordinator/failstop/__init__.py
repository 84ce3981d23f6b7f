"""Fail-stop: what happens when the code of the core raises (docs/safety.md, FST rules)."""
