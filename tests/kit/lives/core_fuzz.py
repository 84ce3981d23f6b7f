"""Random events for a shard alone, in virtual time: what any callers may do, in any order.

A life is a list of actions drawn from a seed. `failure_of` plays one and says what the core raised; `shrunk`
takes away whatever is not needed for that.
"""

import random
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kit.lives.server_assignors import SERVER_ASSIGNORS, Re2Expressions, answer_to
from kit.lives.virtual_shard import VirtualShard
from muster_core.catalog import Catalog
from muster_core.config import GroupConfig
from muster_core.events import (
    Assign,
    Assigned,
    Attach,
    Beat,
    Detach,
    GroupRequest,
    Resolved,
    StreamBroken,
    StreamPlace,
    TopicsChanged,
    Unload,
)
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.partitions import by_topic
from muster_core.position import Position
from muster_core.protocol.room import Room
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, session_pb2
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)

CONFIG = GroupConfig(
    min_session_timeout_ms=50,
    initial_rebalance_delay_ms=50,
    max_size=4,
    max_pending_members=4,
    offsets_retention_ms=4_000,
    retention_check_interval_ms=900,
    append_timeout_ms=700,
)
LENGTH = 120
SHARES = (0, 0.4, 0.9)
"""How much of a life is what members of incremental groups do."""
GROUP = "g"

_PROTOCOLS = ("x", "y", "x y", "y x", "x z", "z", "y z", "", "x x")
_TOPICS = ("t", "u")


class Action(NamedTuple):
    """Something that happens: a method of `Life`, and what it is called with."""

    name: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Failure:
    """What the core raised.

    Attributes:
        kind: the exception and the place that raised it: equal for one fault, however it came about.
        trace: the whole of it.
    """

    kind: str
    trace: str


def drawn(seed: int, length: int = LENGTH) -> list[Action]:
    """The life of a seed: of classic members, of incremental ones, or of both."""
    source = random.Random(seed)
    incremental = source.choice(SHARES)
    return [drawn_from(source, incremental) for _ in range(length)]


def failure_of(actions: Sequence[Action]) -> Failure | None:
    """What the core raises in a life; None: nothing."""
    life = Life()
    try:
        for action in actions:
            life.play(action)
        life.another_owner(0)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return Failure(f"{type(error).__name__} in {place.name}", traceback.format_exc())
    return None


def shrunk(actions: Sequence[Action], kind: str) -> list[Action]:
    """A shorter life with a failure of that kind."""
    left = list(actions)
    size = len(left) // 2
    while size:
        begin = 0
        while begin < len(left):
            shorter = left[:begin] + left[begin + size :]
            failure = failure_of(shorter)
            if failure is not None and failure.kind == kind:
                left = shorter
            else:
                begin += size
        size //= 2
    return left


class Life:
    """One group on a shard, with callers that remember the member ids that they were given."""

    def __init__(self) -> None:
        self.catalog = Catalog(10, {"t": 3}, {}, {"t": 2}, epoch=1)
        self.member_ids: list[str] = []
        self.calls: list[int] = []
        self.cluster = VirtualShard(CONFIG)
        self._move_in()

    def _move_in(self) -> None:
        room = Room(assignors=SERVER_ASSIGNORS, expressions=Re2Expressions(), at_once_max=4)
        self.cluster.shard.live_in(room)
        self.cluster.feed(TopicsChanged(frozenset(), catalog=self.catalog))

    def play(self, action: Action) -> None:
        """Lets it happen."""
        method: Callable[..., None] = getattr(self, action.name)
        method(*action.arguments)
        for answer in self.cluster.answers.values():
            if isinstance(answer, coordinator_pb2.JoinGroupResponse) and answer.member_id:
                self.member_ids = [*dict.fromkeys([*self.member_ids, answer.member_id])][-8:]
        self.cluster.answers.clear()

    # --- calls

    def join(
        self,
        who: int,
        instance: str,
        protocols: str,
        metadata: bytes,
        times: tuple[int, int],
        rest: tuple[Any, ...],
    ) -> None:
        seq, request_id, protocol_type = rest
        request = coordinator_pb2.JoinGroupRequest(
            group_id=GROUP,
            member_id=self._member_id(who),
            group_instance_id=instance,
            session_timeout_ms=times[0],
            rebalance_timeout_ms=times[1],
            protocol_type=protocol_type,
            protocols=[
                coordinator_pb2.GroupProtocol(name=name, metadata=metadata) for name in protocols.split()
            ],
            member_seq=seq,
            member_secret=_SECRET if seq == 2 or instance == "j" else b"",
            request_id=request_id,
        )
        self._call(request)

    def sync(self, who: int, generation: int, instance: str, assignment: bytes | None) -> None:
        given = [] if assignment is None else self.member_ids
        request = coordinator_pb2.SyncGroupRequest(
            group_id=GROUP,
            member_id=self._member_id(who),
            group_instance_id=instance,
            generation=self._generation + generation,
            member_secret=_secret(who),
            assignments=[
                coordinator_pb2.SyncGroupRequest.Assignment(member_id=one, assignment=assignment or b"")
                for one in given
            ],
        )
        self._call(request)

    def heartbeat(self, who: int) -> None:
        self._call(
            coordinator_pb2.HeartbeatRequest(
                group_id=GROUP,
                member_id=self._member_id(who),
                generation=self._generation,
                member_secret=_secret(who),
            )
        )

    def leave(self, *leavers: tuple[int, str]) -> None:
        members = [
            coordinator_pb2.LeaveGroupRequest.Member(
                member_id=self._member_id(who), group_instance_id=instance, member_secret=_secret(who)
            )
            for who, instance in leavers
        ]
        self._call(coordinator_pb2.LeaveGroupRequest(group_id=GROUP, members=members))

    def commit(self, who: int, seq: int, topic: str) -> None:
        request = coordinator_pb2.OffsetCommitRequest(
            group_id=GROUP,
            member_id=self._member_id(who),
            generation=self._generation if who >= 0 else -1,
            member_seq=seq,
            member_secret=_secret(who),
        )
        request.topics.add(name=topic).partitions.add(offset=1)
        self._call(request)

    # --- calls of members of the incremental kind

    def beat_as(
        self,
        who: int,
        epoch: int | None,
        join: tuple[int, bytes],
        terms: tuple[str, tuple[str, ...] | None, str | None],
        knows: tuple[str, str],
        place: tuple[int, int] | None,
    ) -> None:
        """A heartbeat.

        Args:
            who: the member; one of a few ids.
            epoch: what it names; None: the one that it has.
            join: number and process of its join; 0: none.
            terms: its static id, and what it subscribes to by names and by an expression; None: as before.
            knows: which version and which list it names: `present`, `other` or `none`.
            place: its stream and its number of it; None: it makes a call.
        """
        instance, topics, expression = terms
        group, member_id = self._incremental, _IDS[who]
        member = None if group is None else group.members.get(member_id)
        present = 1 if member is None or group is None else group.epoch_of(member)
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=max(-2, present if epoch is None else epoch),
            member_seq=join[0],
            process_id=join[1] if join[0] else b"",
            group_instance_id=instance or None,
            rebalance_timeout_ms=500 if epoch == 0 else None,
            topic_regex=expression,
            member_secret=_secret(who),
        )
        if topics is not None:
            request.topics.names.extend(topics)
        version, owned = knows
        if owned != "none":
            request.owned.SetInParent()
            has = () if member is None or owned == "other" else member.assigned
            request.owned.topics.extend(by_topic(has if epoch != 0 else ()))
        if join[0] and version != "none":
            known = Position(1, 3) if member is None or version == "other" else member.version
            request.version.CopyFrom(known.to_proto())
        self._call(request, None if place is None or not join[0] else StreamPlace(*place))

    def commit_by_token(self, who: int, seq: int, partition: int, lost: bool) -> None:
        group, member_id = self._incremental, _IDS[who]
        member = None if group is None else group.members.get(member_id)
        has = {} if member is None else member.held
        since = has.get(("t", partition))
        token = Position(1, 1) if since is None or lost else since.token
        request = coordinator_pb2.OffsetCommitRequest(
            group_id=GROUP, member_id=member_id, member_seq=seq, member_secret=_secret(who)
        )
        if member is not None and group is not None and not lost:
            request.member_epoch = max(-1, group.epoch_of(member))
        request.topics.add(name="t").partitions.add(partition=partition, offset=1, token=token.to_proto())
        self._call(request)

    def describe(self) -> None:
        self._call(ConsumerGroupDescribeRequest(group_ids=[GROUP, "other"]))

    def work_is_done(self, which: int, failed: bool, twice: bool) -> None:
        """Work aside ends, in any order; an owner that is gone gets no answer."""
        work = self.cluster.work
        if not work:
            return
        one = work[which % len(work)]
        work.remove(one)
        kind = Assigned if isinstance(one, Assign) else Resolved
        for _ in range(1 + twice):
            self.cluster.feed(kind(one.group_id, one.number, None) if failed else answer_to(one))

    @property
    def _incremental(self) -> IncrementalGroup | None:
        group = self.cluster.shard.groups.get(GROUP)
        return None if group is None else group.incremental

    # --- calls of anybody

    def delete_group(self) -> None:
        self._call(coordinator_pb2.DeleteGroupsRequest(group_ids=[GROUP]))

    def delete_offsets(self, topic: str) -> None:
        topics = [common_pb2.TopicPartitions(topic=topic, partitions=[0, 1])]
        self._call(coordinator_pb2.OffsetDeleteRequest(group_id=GROUP, topics=topics))

    def cancel(self, which: int) -> None:
        if self.calls and self.cluster.is_parked(call := self.calls[which % len(self.calls)]):
            self.cluster.cancel(call)

    # --- streams

    def attach(self, who: int, stream: int) -> None:
        request = session_pb2.Attach(
            group_id=GROUP,
            member_id=self._member_id(who),
            generation=self._generation,
            member_secret=_secret(who),
        )
        self.cluster.feed(Attach(stream, request))

    def detach(self, who: int, stream: int) -> None:
        self.cluster.feed(Detach(stream, session_pb2.Detach(group_id=GROUP, member_id=self._member_id(who))))

    def beat(self, stream: int) -> None:
        self.cluster.feed(Beat(stream))

    def stream_breaks(self, stream: int, suspect: bool) -> None:
        self.cluster.feed(StreamBroken(stream, suspect))

    # --- the world

    def time_passes(self, ms: int) -> None:
        self.cluster.advance(ms)

    def log_is_slow(self) -> None:
        self.cluster.auto_ack = False

    def log_is_quick(self) -> None:
        self.cluster.auto_ack = True
        while self.cluster.waiting:
            self.cluster.acknowledge()

    def one_append_is_done(self) -> None:
        if self.cluster.waiting:
            self.cluster.acknowledge()

    def lease_is_lost(self) -> None:
        self.cluster.suspend()

    def lease_is_held_again(self) -> None:
        self.cluster.resume()

    def topic_changes(self, topic: str, deleted: bool) -> None:
        before = self.catalog
        offset, partitions = before.offset + 1, dict(before.partitions)
        deletions, incarnations = dict(before.deletions), dict(before.incarnations)
        if deleted and topic in partitions:
            del partitions[topic], incarnations[topic]
            deletions[topic] = offset
        elif not deleted:
            incarnations.setdefault(topic, offset)
            partitions[topic] = partitions.get(topic, 1) + 1
        self.catalog = Catalog(offset, partitions, deletions, incarnations, epoch=1)
        self.cluster.feed(TopicsChanged(frozenset({topic}), catalog=self.catalog))

    def another_owner(self, landed: int) -> None:
        """Unloads; so many appends that were on their way landed all the same; loads."""
        self.cluster.auto_ack = False
        self.cluster.feed(Unload())
        self.cluster.land(landed)
        now_ms = self.cluster.now_ms
        self.cluster = self.cluster.reloaded()
        self.cluster.now_ms = max(now_ms, self.cluster.now_ms)
        self.calls.clear()
        self._move_in()

    # --- who

    @property
    def _generation(self) -> int:
        group = self.cluster.shard.groups.get(GROUP)
        return 1 if group is None else group.generation

    def _member_id(self, who: int) -> str:
        return self.member_ids[who % len(self.member_ids)] if who >= 0 and self.member_ids else ""

    def _call(self, request: GroupRequest, place: StreamPlace | None = None) -> None:
        self.calls.append(self.cluster.send(request, place=place))


_IDS = ("a", "b", "c", "d", "e")
_PROCESSES = (b"p1".ljust(16, b"."), b"p2".ljust(16, b"."))
_SUBSCRIPTIONS = (("t",), ("t",), ("t", "u"), ("u",), (), None)
_EXPRESSIONS = (None, None, None, "t.*", "u|v", "", "(")

_SECRET = b"a member's secret"


def _secret(who: int) -> bytes:
    """What a caller brings: one of some has forgotten it."""
    return b"" if who == 3 else _SECRET


def drawn_from(source: random.Random, incremental: float = 0.0) -> Action:
    """What a source of draws lets happen next.

    Args:
        source: of the draws.
        incremental: how much of it is what members of incremental groups do.
    """
    if source.random() < incremental:
        return _drawn_incremental(source)
    pick, chance = source.choice, source.random()
    who, instance = pick([-1, -1, 0, 1, 2, 3, 4]), pick(["", "", "", "i", "j"])
    table: list[tuple[float, Callable[[], Action]]] = [
        (
            0.43,
            lambda: Action(
                "join",
                (
                    who,
                    instance,
                    pick(["x", "x y", "x y", *_PROTOCOLS]),
                    pick(_METADATA),
                    (pick([50, 1_000]), pick([0, 10, 500])),
                    (pick([0, 0, 1, 2]), pick(["", "", "r"]), pick(["consumer"] * 9 + ["other", ""])),
                ),
            ),
        ),
        (
            0.15,
            lambda: Action("sync", (who, pick([0, 0, 0, -1]), pick(["", instance]), pick(_ASSIGNMENTS))),
        ),
        (0.04, lambda: Action("heartbeat", (who,))),
        (
            0.07,
            lambda: Action(
                "leave", tuple((pick([-1, 0, 1, 2]), pick(["", "i", "j"])) for _ in range(pick([1, 1, 2])))
            ),
        ),
        (0.04, lambda: Action("commit", (who, pick([0, 1, 2, 3]), pick(_TOPICS)))),
        (0.01, lambda: Action("delete_group")),
        (0.01, lambda: Action("delete_offsets", (pick(_TOPICS),))),
        (0.05, lambda: Action("cancel", (source.randrange(1_000),))),
        (0.08, lambda: Action("time_passes", (pick([1, 10, 50, 60, 500, 1_000, 3_000]),))),
        (0.01, lambda: Action("log_is_slow")),
        (0.02, lambda: Action("log_is_quick")),
        (0.03, lambda: Action("one_append_is_done")),
        (0.02, lambda: Action("attach", (who, pick([1, 2])))),
        (0.01, lambda: Action(pick(["attach", "detach"]), (who, pick([1, 2])))),
        (0.01, lambda: Action("beat", (pick([1, 2]),))),
        (0.01, lambda: Action("stream_breaks", (pick([1, 2]), pick([True, False])))),
        (0.005, lambda: Action(pick(["lease_is_lost", "lease_is_held_again", "lease_is_held_again"]))),
        (0.01, lambda: Action("topic_changes", (pick(_TOPICS), pick([True, False])))),
    ]
    for weight, made in table:
        chance -= weight
        if chance < 0:
            return made()
    return Action("another_owner", (pick([0, 0, 1, 2]),))


def _drawn_incremental(source: random.Random) -> Action:
    """What members of incremental groups do, and the work aside for them."""
    pick, chance, who = source.choice, source.random(), source.randrange(len(_IDS))
    if chance < 0.75:
        epoch = pick([0, 0, None, None, None, None, -1, -2, 1, 3])
        joins = (pick([0, 1, 1, 1, 2]), pick([*_PROCESSES, _PROCESSES[0]]))
        topics, expression = (None, None) if epoch else (pick(_SUBSCRIPTIONS), pick(_EXPRESSIONS))
        if epoch != 0 and source.random() < 0.1:
            topics = pick(_SUBSCRIPTIONS)
        terms = (pick(["", "", "i", "j"]) if who > 2 else "", topics, expression)
        owned = ["other"] * 5 + ["none"] if epoch == 0 else ["present", "present", "other", "none"]
        knows = (pick(["present", "present", "present", "other", "none"]), pick(owned))
        place = pick([None, (pick([1, 2]), pick([1, 1, 2]))])
        return Action("beat_as", (who, epoch, joins, terms, knows, place))
    if chance < 0.83:
        lost = pick([False, False, True])
        return Action("commit_by_token", (who, pick([0, 1, 2, 3]), source.randrange(4), lost))
    if chance < 0.97:
        return Action(
            "work_is_done", (source.randrange(100), pick([False] * 4 + [True]), pick([False, True]))
        )
    return Action("describe")


def _subscription(version: int) -> bytes:
    owned = [common_pb2.TopicPartitions(topic="t", partitions=[0, 1])]
    return common_pb2.Subscription(
        version=version, topics=["t"], keeps_owned=True, owned_partitions=owned
    ).SerializeToString()


def _assignment(*partitions: int) -> bytes:
    entry = common_pb2.TopicPartitions(topic="t", partitions=partitions)
    return common_pb2.Assignment(version=1, partitions=[entry]).SerializeToString()


_METADATA = (b"", b"a", b"b", b"\xff\xff", _subscription(1), _subscription(2))
_ASSIGNMENTS = (None, b"q", b"\xff", _assignment(), _assignment(0), _assignment(1, 0, 0))
