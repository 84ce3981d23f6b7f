"""The replicated logs: claim, append, read, repair, snapshot, trim (docs/safety.md, LOG rules).

`verdicts` decides what the answers of the nodes mean and is pure; `logs` has the steps that callers ask for;
`upkeep` and `patrol` find nodes that lag, in the background, and `repairs` brings them up to date. `states`
has the values they share.
"""
