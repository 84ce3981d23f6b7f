"""The replicated logs: claim, append, read, repair, snapshot, trim (docs/safety.md, LOG rules).

`verdicts` says what the answers of the nodes mean and is pure; `logs` has the steps as callers ask for them;
`upkeep` and `patrol` keep the nodes level when nobody asks.
"""
