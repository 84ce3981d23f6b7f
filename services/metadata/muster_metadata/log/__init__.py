"""The replicated logs: claim, append, read, repair, snapshot, trim (docs/safety.md, LOG rules).

`verdicts` decides what the answers of the nodes mean and is pure; `logs` has the steps that callers ask for;
`upkeep` and `patrol` find nodes that lag, in the background; `repair` brings one up to date from what
`sources` reads of the others, or lets `rebuilding` copy the whole log. `states` has the values they share.
"""
