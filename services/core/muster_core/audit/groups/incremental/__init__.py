"""What a log must never show of incremental groups.

`checker.py` follows them record by record, `state.py` is what it knows of one, `forms.py` what their records
say by themselves, `commits.py` whose commits count. The state is kept apart from that of
`muster_core.incremental`, which replays the same records: a fault there is seen here.
"""
