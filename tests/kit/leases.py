"""How long the leases of servers are that tests start: the one place that says so.

A lease that lapses since the machine is busy is no part of most tests: members have a whole session again,
shards move, and answers are "try again". So leases last, and a test of their end has the marker
`brief_lease`. What gives its servers a lease by itself has that one. A coordinator that is killed or loses
its stream is replaced at once all the same.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

LASTING_MS = 20_000
"""Longer than a starved machine keeps a process from its turn."""
_VARIABLE = "MUSTER_METADATA_LEASE_MS"
LASTING = {_VARIABLE: str(LASTING_MS)}
"""For the processes of a program that is no test."""

_now = [0]  # The last one holds; 0: brief, as for programs that are no tests.


@contextmanager
def lasting(ms: int = LASTING_MS) -> Iterator[None]:
    """Gives servers that are started meanwhile a lease of so many milliseconds; 0: a brief one."""
    _now.append(ms)
    try:
        yield
    finally:
        _now.pop()


def lease_ms(brief_ms: int) -> int:
    """The lease of a server that is started now; `brief_ms` where leases are to be brief."""
    return _now[-1] or brief_ms


def variables() -> Mapping[str, str]:
    """What processes get: nothing where leases are to be brief, for theirs is by default."""
    return {_VARIABLE: str(_now[-1])} if _now[-1] else {}
