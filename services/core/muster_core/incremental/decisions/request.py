"""What a decision about a request is made of, and what it comes to: values that its callers share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from muster_protos.muster.log.v1 import records_pb2

from muster_core.error_code import ErrorCode
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.partitions import NONE, Partitions
from muster_core.incremental.targets.target import (
    Expressions,
    ServerAssignor,
    Topics,
    When,
)
from muster_core.position import NOWHERE, Position

JOIN = 0


LEAVE = -1


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a decision needs beside the group and the request.

    Attributes:
        topics: the topics that there are.
        topics_changed: whether they may have changed since the group's epoch was raised last.
        assignors: by name, the default first.
        max_size: members that a group may have.
        max_topics: different topics that they may name.
        host: address of the caller.
        wall_ms: the time.
        identity: whom a member belongs to that joins now and belongs to nobody yet; empty: nobody.
        secret_hash: of the caller's secret; empty: it has none, or secrets do not count.
        on_session: whether the request came by a session stream.
        is_suspect: whether a member, by id, was not heard of since its stream broke, or for as long after a
            load.
        when: when the target of a group that is out of date is computed.
        expressions: what judges expressions; None: there are no subscriptions by them.
        session_ms: what is set for the group as session of whoever joins; 0: what that asks for.
        grace_ms: what is set as its disconnect grace.
        may_hold: whether members may hold back moves.
        named: the newest version that a request of the member has named; nowhere: none did.
    """

    topics: Topics
    topics_changed: bool
    assignors: Mapping[str, ServerAssignor]
    max_size: int
    max_topics: int
    host: str
    wall_ms: int
    identity: str = ""
    secret_hash: bytes = b""
    on_session: bool = False
    is_suspect: Callable[[str], bool] = lambda _: False
    when: Callable[[IncrementalGroup], When] = lambda _: When.NOW
    expressions: Expressions | None = None
    session_ms: int = 0
    grace_ms: int = 0
    may_hold: bool = True
    named: Position = NOWHERE


class Refused(Exception):
    """A request is refused; nothing was decided.

    Attributes:
        code: why.
        holder: join of the process that has the place; nowhere: that is not why.
    """

    def __init__(self, code: ErrorCode, text: str, holder: Position = NOWHERE) -> None:
        super().__init__(text)
        self.code = code
        self.holder = holder


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a request came to.

    Attributes:
        records: what is to be stored before it is answered; none: it changes nothing.
        member_id: of whom the answer is; gone by then if it left for good.
        left: -1 or -2: it left; 0: it did not.
        whole_list: whether the list is told by Kafka's rules; who names versions is told what it has not
            heard.
        when: when the target is computed, where it is out of date: who has to wait for that makes no step
            yet.
        before: what the member worked on before the request.
        group: the group as the request leaves it, if its member stays.
    """

    records: list[records_pb2.Record]
    member_id: str
    left: int = 0
    whole_list: bool = False
    when: When = When.NOW
    before: Partitions = NONE
    group: IncrementalGroup | None = None
