"""What a scenario is, and the list of all of them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from chaos.arena import Arena

KILLED_MS, SILENT_MS, NODE_MS = 4_000, 7_000, 2_500
"""How long a commit may take at most when a coordinator died, went silent, or a Redis node is missing.

Far above the bars, which `./x bench failover` measures on a quiet machine: here 300 members share it with
everything else, and a limit that only noise breaks would be worth nothing.
"""

PLAIN, TRIMMING = "plain", "trimming"
"""Kinds of clusters: the default settings; snapshots after 100 records and a retention of 5 s."""

CLUSTER_SETTINGS: dict[str, dict[str, str]] = {
    PLAIN: {},
    TRIMMING: {"MUSTER_SHARD_LOG_SNAPSHOT_RECORDS": "100", "MUSTER_SHARD_LOG_RETENTION_MS": "5000"},
}

Run = Callable[[Arena], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fault and what must come of it.

    Attributes:
        number: its number in the list of scenarios.
        what: the fault, in short.
        run: injects it and checks what is its own; gives the evidence that the state was hit.
        within_ms: how long a commit of the load may take.
        rebalances: the most generations of the load's groups that may begin.
        tries: how often it is tried when its state was not hit.
        cluster: kind of the cluster that it takes place on.
    """

    number: str
    what: str
    run: Run
    within_ms: int
    rebalances: int = 0
    tries: int = 1
    cluster: str = PLAIN


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    number: str, what: str, within_ms: int, *, rebalances: int = 0, tries: int = 1, cluster: str = PLAIN
) -> Callable[[Run], Run]:
    """Adds one to the list."""

    def add(run: Run) -> Run:
        SCENARIOS[number] = Scenario(number, what, run, within_ms, rebalances, tries, cluster)
        return run

    return add
