"""What all shards of a process share."""

from collections.abc import Callable
from dataclasses import dataclass, field

from muster_core.catalog import Catalog
from muster_core.clock import Now
from muster_core.events import Event, Work
from muster_core.features import Feature
from muster_core.protocol.room import ALONE, Room
from muster_core.shard import Shard

from muster_coordinator.failstop.faults import Faults
from muster_coordinator.log.loader import Loader
from muster_coordinator.log.log_client import Log, Nonces
from muster_coordinator.log.watch import Watch


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who claims, as the log names it.

    Attributes:
        node_id: name of the process.
        session: identity of this run of it.
        version: of its software.
    """

    node_id: str
    session: str
    version: str


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What all shards of a process share.

    Attributes:
        claimant: this process.
        log: the log client.
        nonces: source of nonces.
        loader: reads logs.
        now: both clocks.
        may_answer: whether the lease is held at a boot time.
        features: what the cluster has enabled; complete while the lease is held.
        catalog: the topics as this process has carried them out; None: not heard of yet.
        load_wait_ms: how long a call waits for a load to end before it is answered
            COORDINATOR_LOAD_IN_PROGRESS.
        barrier_wait_ms: how long an OffsetFetch waits for its barrier.
        watch: makes what is notified of the records that a loaded shard stores; None: nobody is.
        room: what the limits ask of the process.
        faults: what failed in this process.
        is_operator: whether the caller of now may put members of others out of a group; None: nobody says who
            may.
        aside: does work that would take too long for a turn; the answer comes on the loop, or never.
        handoff_wait_ms: how long a hand-over waits for open appends before it goes on without them.
    """

    claimant: Claimant
    log: Log
    nonces: Nonces
    loader: Loader
    now: Callable[[], Now]
    may_answer: Callable[[int], bool]
    features: Callable[[], frozenset[Feature]]
    catalog: Callable[[], Catalog | None] = lambda: None
    watch: Callable[[Shard], Watch | None] = lambda _core: None
    room: Room = ALONE
    faults: Faults = field(default_factory=Faults.not_kept)
    is_operator: Callable[[str], bool | None] = lambda _group_id: None
    aside: Callable[[Work, Callable[[Event], None]], None] = lambda _work, _done: None
    load_wait_ms: int = 100
    barrier_wait_ms: int = 5_000
    handoff_wait_ms: int = 1_000
