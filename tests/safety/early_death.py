"""Reads of the lease table come late: nobody is dead before the lease time has passed (OWN-24).

Monitor, observer and view are the real ones, with settings that are accepted; what the nodes answer to the
reads is played in virtual time. A coordinator renews for the last time when the nodes differ: reads of some
of them take long, and one of them takes no writes. The control run, in which all reads are fast, shows that a
silent coordinator is dead soon after its lease time.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from kit.programs import Broken, report, run
from muster_metadata.cluster.leases import DEAD, LeaseObserver, LeaseRow
from muster_metadata.cluster.monitor import Monitor
from muster_metadata.cluster.publisher import ViewPublisher
from muster_metadata.cluster.tables import NodeTables
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.quorum import Quorum
from muster_metadata.settings import MetadataSettings

INTERVAL_MS = 400
SETTINGS = ((2_000, 100), (2_000, 200), (2_000, 400), (2_000, 600), (1_000, 100))
SEEDS = 150
_BEGIN_MS = 10_000
_END_MS = 30_000


@dataclass(frozen=True)
class Read:
    """One read of a node's tables.

    Attributes:
        node: which one is read.
        sent_ms: when it was asked.
        stored_ms: when the node looked.
        heard_ms: when its answer came.
    """

    node: int
    sent_ms: int
    stored_ms: int
    heard_ms: int


def reads_of(draw: random.Random, node: int, takes_ms: Callable[[int], int], poll_ms: int) -> Iterator[Read]:
    """The reads of a node, one after the other; the node looks somewhere between question and answer."""
    sent_ms = _BEGIN_MS - 2_000 + draw.randrange(3 * poll_ms)
    while sent_ms < _END_MS:
        takes = takes_ms(sent_ms)
        yield Read(node, sent_ms, sent_ms + draw.randrange(takes), sent_ms + takes)
        sent_ms += max(poll_ms, takes)


def dead_after_ms(lease_ms: int, poll_ms: int, seed: int, *, slow: bool = True) -> int:
    """How long after its last good renewal was sent a coordinator is declared dead, in ms."""
    settings = {"redis_url": "redis://a,b,c", "lease_ms": lease_ms, "poll_ms": poll_ms}
    MetadataSettings.model_validate(settings | {"renew_timeout_ms": 300})
    draw = random.Random(seed)
    now_ms = _BEGIN_MS
    nodes = [Node(index, f"redis://n{index}", 1_000) for index in (1, 2, 3)]
    view = ViewPublisher(LeaseObserver(lease_ms), lambda: now_ms)
    view.known("cluster", 1)
    monitor = Monitor(
        Quorum(nodes, 1_000), cast(Any, None), view, poll_ms, lambda: now_ms,
        on_catalog=lambda _: None, on_empty=lambda _: None, on_foreign=lambda: None,
    )  # fmt: skip
    last_ms = 14_000 + INTERVAL_MS * draw.randrange(5)
    # The renewals of the last second come to a majority alone, whose reads may be the slow ones.
    without, since_ms = draw.randrange(4), last_ms - draw.randrange(1_000)
    slow_ones = set(draw.sample(range(3), draw.choice((1, 2)))) if slow else set[int]()
    if slow and draw.random() < 0.5:
        slow_ones = {0, 1, 2} - {without}
    from_ms = draw.choice((0, last_ms - draw.randrange(4 * poll_ms)))
    until_ms = last_ms + lease_ms + draw.randrange(-3 * poll_ms, 3 * poll_ms)

    def takes_ms(node: int) -> Callable[[int], int]:
        longest_ms = 3 * poll_ms - draw.randrange(1, poll_ms)
        return lambda sent_ms: longest_ms if node in slow_ones and from_ms <= sent_ms < until_ms else 2

    def row(read: Read) -> LeaseRow:
        upto_ms = min(read.stored_ms, last_ms)
        if read.node == without and upto_ms > since_ms:
            upto_ms = since_ms
        return LeaseRow("c-1", "s", 1, 1 + (upto_ms - 8_000) // INTERVAL_MS, host="h", port=1)

    reads = [read for node in range(3) for read in reads_of(draw, node, takes_ms(node), poll_ms)]
    judged = [(time_ms, 1, None) for time_ms in range(_BEGIN_MS, _END_MS, poll_ms // 2)]
    heard = [(read.heard_ms, 0, read) for read in reads]
    for now_ms, _, read in sorted((*heard, *judged), key=lambda event: event[:2]):  # the clock
        if read is not None:
            tables = NodeTables(leases={"c-1": row(read)}, owners={})
            monitor._heard(nodes[read.node], read.sent_ms, tables)
            continue
        monitor.judge()
        states = [state for _, state in view.observer.rows()]
        if states == [DEAD]:
            return now_ms - last_ms
    raise AssertionError("it was never declared dead")


async def main() -> None:
    """Draws cases for each of the settings."""
    for lease_ms, poll_ms in SETTINGS:
        after = sorted(dead_after_ms(lease_ms, poll_ms, seed) for seed in range(SEEDS))
        control = max(dead_after_ms(lease_ms, poll_ms, seed, slow=False) for seed in range(SEEDS // 5))
        report(
            f"lease {lease_ms} ms, reads each {poll_ms} ms: dead {after[0]} to {after[-1]} ms after the last "
            f"renewal; with fast reads after {control} ms at most"
        )
        if after[0] < lease_ms:
            raise Broken(f"a coordinator was dead {lease_ms - after[0]} ms before its lease time had passed")
        if control > lease_ms + 4 * poll_ms:
            raise Broken(f"with fast reads a coordinator was dead only {control} ms after its last renewal")


if __name__ == "__main__":
    run(main)
