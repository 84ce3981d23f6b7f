"""How much a caller of the public services may ask for, and how it is refused when that is too much.

A *party* is who calls: an identity, or where nobody proves one, a host. It has connections, each of which
has a smaller quota of its own, so that one broken client is refused before others of its party are.
`quotas.py` finds out who calls, `party.py` and `connection.py` count, `bucket.py` is the arithmetic of a
rate, `rules.py` reads the file of exceptions, and `servicer.py` shows it all.
"""

from muster_runtime.rpc.quotas.connection import Connection, current_connection
from muster_runtime.rpc.quotas.party import Quota
from muster_runtime.rpc.quotas.quotas import Quotas
from muster_runtime.rpc.quotas.settings import QuotaSettings

__all__ = ["Connection", "Quota", "QuotaSettings", "Quotas", "current_connection"]
