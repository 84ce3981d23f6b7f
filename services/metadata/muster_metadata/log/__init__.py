"""The replicated logs: claim, append, read, repair, snapshot, trim (docs/safety.md, LOG rules).

`verdicts` decides what the answers of the nodes mean and is pure; `logs` has the steps that callers ask for;
`upkeep` and `patrol` bring nodes that lag up to date in the background.
"""
