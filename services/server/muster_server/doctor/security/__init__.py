"""`muster doctor --security`: the hardening list of docs/security.md, checked against a running cluster.

`examination.py` asks, as a stranger and as an operator; `ports.py` and `users.py` say what came of it.
"""
