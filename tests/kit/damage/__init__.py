"""Random damages of what nodes hold, and how `muster verify` judges each; read `stage` first.

`streams`, `keys` and `forging` are what is done; `harmless` are the rules of docs/audit.md.
"""
