"""What all session streams of a process share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from muster_runtime.rpc.unread import Cuts

from muster_coordinator.api.admission import Admit, admit_all
from muster_coordinator.api.calls import Calls
from muster_coordinator.session.breaks import Stream
from muster_coordinator.session.calls import UNWATCHED, CallWatch
from muster_coordinator.session.members import MemberKey, StreamMembers
from muster_coordinator.session.outbox import Queued
from muster_coordinator.settings import SessionSettings


class OpenStream(Stream, Protocol):
    """A stream, as others see it."""

    @property
    def stream_id(self) -> int:
        """Its number in this process."""
        ...

    @property
    def members(self) -> StreamMembers:
        """Who is on it."""
        ...


@dataclass(frozen=True, slots=True)
class StreamDependencies:
    """What all streams of a process share.

    Attributes:
        settings: limits and times.
        calls: answers the calls of the group protocol, finds shards.
        places: which stream each attached member is on.
        broke: called with a stream that its client or the network ended, once only its members are open.
        may_answer: whether the lease is held at a boot time.
        boot_ms: the boot clock.
        watch: gives what watches the calls of a stream.
        says_unsure: whether the cluster has the feature `unsure-beats`.
        queued: counts what waits on all streams.
        crowded: called when that is too much.
        cuts: ends the connections of clients that do not read.
        refused: called for each refusal because of a limit, with the name of its setting.
        admit: counts a call, and raises what it is refused with.
    """

    settings: SessionSettings
    calls: Calls
    places: dict[MemberKey, OpenStream]
    broke: Callable[[OpenStream], None]
    may_answer: Callable[[int], bool]
    boot_ms: Callable[[], int]
    watch: Callable[[], CallWatch] = lambda: UNWATCHED
    says_unsure: Callable[[], bool] = lambda: False
    queued: Queued = field(default_factory=Queued)
    crowded: Callable[[], None] = lambda: None
    cuts: Cuts = field(default_factory=Cuts)
    refused: Callable[[str], None] = lambda _: None
    admit: Admit = admit_all
