"""Who calls: what a caller of a public service proves about itself, and where servicers ask for it.

`_identity.py` has the value, and how a call keeps it; `callers.py` finds it out, once for each call:
from `certificates.py`, or from `tokens.py` with the keys of `keys.py` and `key_sources.py`.
"""

from muster_runtime.rpc.identity._identity import LONGEST_NAME, NOBODY, Identity, Proof, current_identity

__all__ = ["LONGEST_NAME", "NOBODY", "Identity", "Proof", "current_identity"]
