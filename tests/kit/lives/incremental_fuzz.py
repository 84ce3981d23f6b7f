"""Random lives of an incremental group: it serves what its log says, and whoever stays gets its share.

Beside the calls of `kit.lives.incremental_calls` there are topics that grow, are deleted and created again,
streams that break, work aside that fails, comes late or twice, a slow log, suspensions, owners after each
other, and classic members. After each step the group is compared with a replay of what is acknowledged, now
and then a replay with one that began with a snapshot. At the end nothing disturbs any more: the group
settles, every call is answered, and the log is checked as `muster verify` does.
"""

import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace

from kit.lives.incremental_calls import TOPICS, DrawnCalls, DrawnStreams
from kit.lives.incremental_shard import FEATURES, GROUP
from kit.lives.played import Differs, played
from kit.lives.server_assignors import SERVER_ASSIGNORS, Re2Expressions, answer_to
from kit.lives.virtual_shard import VirtualMember, VirtualShard
from kit.logs.core_audit import broken_promises
from kit.logs.snapshots import picture, pictures, through_snapshot
from muster_core.catalog import Catalog
from muster_core.config import GroupConfig
from muster_core.events import (
    Assign,
    Assigned,
    Beat,
    Detach,
    GroupRequest,
    Resolved,
    StreamBroken,
    StreamPlace,
    TopicsChanged,
)
from muster_core.incremental.group import IncrementalGroup, IncrementalGroupState
from muster_core.incremental.member import Member
from muster_core.incremental.partitions import TopicPartition
from muster_core.incremental.tally import Tally
from muster_core.position import Position
from muster_core.protocol.room import Room
from muster_core.shard import Shard
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, session_pb2
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

CONFIG = GroupConfig(
    min_session_timeout_ms=50,
    initial_rebalance_delay_ms=50,
    max_size=7,
    offsets_retention_ms=200_000,
    retention_check_interval_ms=60_000,
    history_length=4,
    history_moves=2,
    incremental_assignment_interval_ms=0,
)
LENGTH = 220

Log = list[tuple[Position, records_pb2.Record]]

_ROUNDS = 80
"""Seconds in which a group settles that nothing disturbs; a session is shorter, the longest one a minute."""
_QUIET_ROUNDS = 6
"""After so many in which nothing was stored a group that has settled stays as it is: nobody is silent whose
time could end. One life of eight is played on all the same."""
_SUBSCRIPTION = common_pb2.Subscription(version=1, topics=["t"]).SerializeToString()
_ASSIGNMENT = common_pb2.Assignment(
    version=1, partitions=[common_pb2.TopicPartitions(topic="t", partitions=[0, 1])]
).SerializeToString()


def life(seed: int, length: int = LENGTH) -> "IncrementalShardLife":
    """Plays the life of a seed to its end.

    Raises:
        Differs: see there.
        Exception: whatever the core raises.
    """
    return played(IncrementalShardLife(random.Random(seed)), length)


class IncrementalShardLife:
    """A shard with one incremental group, and its callers.

    Args:
        source: of all draws.

    Attributes:
        cluster: the shard, with its log.
        steps: what happened, for people.
    """

    cluster: VirtualShard
    _replay: Shard
    _replayed: int

    def __init__(self, source: random.Random) -> None:
        self._draw = source
        self.steps: list[str] = []
        self._config = replace(CONFIG, incremental_assignment_interval_ms=source.choice([-1, -1, 0, 300]))
        self._at_once_max = source.choice([2, 8, sys.maxsize])
        self._slow = source.choice([0, 0, 0.15])
        self._catalog = Catalog(10, {"t": 3}, {}, {"t": 2}, epoch=1)
        self._streams = DrawnStreams(source)
        self._calls = DrawnCalls(source, source.choice([1, 1, 0.7, 0]), source.choice([1, 0.7, 0.3, 0]))
        self._parked: list[int] = []
        self._on_streams: set[int] = set()
        self._classic: VirtualMember | None = None
        self._load([], 10_000)
        classic = source.choice([0, 0, 2])
        self._actions: tuple[tuple[int, Callable[[], None]], ...] = (
            (14, self._join),
            (6, self._together),
            (70, self._beat),
            (6, self._leave),
            (14, self._commit),
            (6, self._topic),
            (16, self._time_passes),
            (1, self._long_time_passes),
            (14, self._work),
            (10, self._stream),
            (6 if self._slow else 0, self._log),
            (3, self._another_owner),
            (2, self._outage),
            (classic, self._classic_joins),
            (3 * classic, self._classic_goes_on),
            (4, self._admin),
            (2, self._cancel),
            (1, self._detach),
        )

    @property
    def generations(self) -> int:
        """How many targets the log has."""
        return self.cluster.kinds().count("target_assigned")

    def step(self) -> None:
        """Lets something happen."""
        weights = [weight for weight, _ in self._actions]
        (_, act) = self._draw.choices(self._actions, weights)[0]
        self.steps.append(act.__name__.strip("_"))
        self.cluster.auto_tick = self._draw.random() < 0.5
        act()
        if self.cluster.auto_tick or self._draw.random() < 0.5:
            self.cluster.advance(self._draw.choice([0, 10, 100]))
        self._take_answers()

    def _load(self, log: Log, now_ms: int) -> None:
        """Somebody owns the shard from now on and serves what a log says."""
        room = Room(assignors=SERVER_ASSIGNORS, expressions=Re2Expressions(), at_once_max=self._at_once_max)
        self.cluster = VirtualShard(self._config, log, FEATURES, now_ms=now_ms, room=room)
        self._replay, self._replayed = Shard(0, self._config), 0
        self.cluster.feed(TopicsChanged(frozenset(), catalog=self._catalog))

    # --- calls

    @property
    def _group(self) -> IncrementalGroup | None:
        group = self.cluster.shard.groups.get(GROUP)
        return None if group is None else group.incremental

    def _any_member(self) -> tuple[IncrementalGroup, Member] | None:
        group = self._group
        if group is None or not group.members:
            return None
        return group, group.members[self._draw.choice(sorted(group.members))]

    def _send(self, request: GroupRequest, place: StreamPlace | None = None) -> None:
        call = self.cluster.send(request, place=place)
        self._parked.append(call)
        if place is not None:
            self._on_streams.add(call)
        self._take_answers()

    def _take_answers(self) -> None:
        answers, parked, self._parked = self.cluster.answers, self._parked, []
        for call in parked:
            answer = answers.pop(call, None)
            if answer is None:
                self._parked.append(call)
            elif (
                call in self._on_streams
                and isinstance(answer, ConsumerGroupHeartbeatResponse)
                and not (answer.error_code or answer.member_epoch)
            ):
                raise Differs(f"a member on a stream is told the epoch of a join (INC-107): {answer}")

    def _join(self) -> None:
        request, on_stream = self._calls.join(self._group)
        self._send(request, self._streams.place(request) if on_stream else None)

    def _together(self) -> None:
        """Many ask while the log is slow: what waits in line is decided together, less who gives up."""
        cluster, was_quick = self.cluster, self.cluster.auto_ack
        cluster.auto_ack = False
        for _ in range(self._draw.randrange(3, 9)):
            self._draw.choice([self._join, self._join, self._beat, self._beat, self._beat, self._leave])()
            if self._draw.random() < 0.08:
                self._draw.choice([self._cancel, self._stream, self._topic, self._commit])()
        cluster.auto_ack = was_quick
        while was_quick and cluster.waiting:
            cluster.acknowledge()

    def _beat(self) -> None:
        if (found := self._any_member()) is not None:
            group, member = found
            request = self._calls.beat(group, member, odd=self._draw.random() < 0.35)
            on_stream = member.told.on_session or self._draw.random() < 0.1
            self._send(request, self._streams.place(request) if on_stream and request.member_seq else None)

    def _leave(self) -> None:
        if (found := self._any_member()) is not None:
            self._say_of(found[1], self._calls.leave(found[1]))

    def _say_of(self, member: Member, request: ConsumerGroupHeartbeatRequest) -> None:
        """Makes a call from where the member is."""
        on_stream = member.told.on_session and request.member_seq
        self._send(request, self._streams.place(request) if on_stream else None)

    def _commit(self) -> None:
        group, member = self._any_member() or (None, None)
        self._send(self._calls.commit(group, member, self.cluster.now_ms))

    def _admin(self) -> None:
        group = self._group
        if group is not None and self._draw.random() < 0.05:
            for member in list(group.members.values()):
                self._say_of(member, self._calls.leave(member))
        self.cluster.is_operator = self._draw.choice([None, True, False])
        self._send(self._calls.admin())
        self.cluster.is_operator = None

    def _cancel(self) -> None:
        if self._parked:
            self.cluster.cancel(self._parked.pop(self._draw.randrange(len(self._parked))))

    # --- classic members

    def _classic_joins(self) -> None:
        member = self._classic = VirtualMember(
            self.cluster, "classic", instance=self._draw.choice(["", "", "i"])
        )
        member.protocols = [("range", _SUBSCRIPTION)]
        member.call_id = self.cluster.send(member.join_request())

    def _classic_goes_on(self) -> None:
        """The last one does what its last answer lets it do; without an answer it leaves."""
        member = self._classic
        if member is None or member.cluster is not self.cluster:
            return
        answer = self.cluster.answers.pop(member.call_id, None)
        if isinstance(answer, coordinator_pb2.JoinGroupResponse):
            member.member_id = answer.member_id or member.member_id
            if not answer.error_code:
                member.generation = answer.generation
                member.sync({member.member_id: _ASSIGNMENT})
            elif answer.member_id:
                member.call_id = self.cluster.send(member.join_request())
        elif isinstance(answer, coordinator_pb2.SyncGroupResponse):
            self._send(member.commit_request(5))
        elif member.member_id:
            leaver = coordinator_pb2.LeaveGroupRequest.Member(member_id=member.member_id)
            self._send(coordinator_pb2.LeaveGroupRequest(group_id=GROUP, members=[leaver]))

    # --- the world

    def _topic(self) -> None:
        """A topic is created, grows, loses a partition, or is deleted; mostly it is created again at once."""
        before, name = self._catalog, self._draw.choice(TOPICS)
        offset, partitions = before.offset + 1, dict(before.partitions)
        deletions, incarnations = dict(before.deletions), dict(before.incarnations)
        removed, chance = dict(before.removed), self._draw.random()
        is_deleted = name in partitions and chance < 0.5
        if is_deleted:
            del partitions[name], incarnations[name]
            removed.pop(name, None)
            deletions[name] = offset
        if name in partitions and chance < 0.65:
            gone = self._draw.randrange(partitions[name])
            removed[name] = removed.get(name, frozenset()) | {gone}
        elif name in partitions:
            partitions[name] += 1
        elif not is_deleted or self._draw.random() < 0.6:
            offset += is_deleted
            partitions[name], incarnations[name] = self._draw.randrange(1, 5), offset
        self._catalog = Catalog(offset, partitions, deletions, incarnations, epoch=1, removed=removed)
        self.cluster.feed(TopicsChanged(frozenset({name}), catalog=self._catalog))

    def _time_passes(self) -> None:
        self.cluster.advance(self._draw.choice([10, 500, 1_000, 3_100, 10_001]))

    def _long_time_passes(self) -> None:
        self.cluster.advance(self._draw.choice([21_000, 46_000, 300_000]))

    def _work(self) -> None:
        """A piece of work is done, in any order; some fails, some is answered twice."""
        work = self.cluster.work
        if not work:
            return
        at = self._draw.randrange(len(work))
        one, chance = work[at], self._draw.random()
        del work[at]
        if chance < 0.1:
            kind = Assigned if isinstance(one, Assign) else Resolved
            self.cluster.feed(kind(one.group_id, one.number, None))
            return
        for _ in range(2 if chance < 0.2 else 1):
            self.cluster.feed(answer_to(one))

    def _stream(self) -> None:
        """A stream beats or breaks; or all break, as when the machines of many members are gone."""
        stream_id, chance = self._streams.one(), self._draw.random()
        if chance < 0.6:
            self.cluster.feed(Beat(stream_id, self._streams.next_beat()))
            return
        for broken in [stream_id] if chance < 0.95 else list(self._streams.open):
            self._streams.close(broken)
            self.cluster.feed(StreamBroken(broken, self._draw.random() < 0.8))

    def _detach(self) -> None:
        if (found := self._any_member()) is not None:
            detach = session_pb2.Detach(group_id=GROUP, member_id=found[1].member_id)
            self.cluster.feed(Detach(self._streams.one(), detach))

    def _log(self) -> None:
        """The log becomes slow or quick; what waits is acknowledged, all or a part."""
        cluster = self.cluster
        cluster.auto_ack = not cluster.auto_ack if self._draw.random() < self._slow else True
        waiting = len(cluster.waiting)
        for _ in range(waiting if cluster.auto_ack else self._draw.randrange(waiting + 1)):
            if cluster.waiting:
                cluster.acknowledge()

    def _another_owner(self) -> None:
        """What is not acknowledged is lost; calls and work go nowhere."""
        self.cluster.land(0)
        self._load(self.cluster.log, self.cluster.now_ms)
        self._parked.clear()
        self._on_streams.clear()
        self._streams.renew()
        self.cluster.auto_ack = not (self._slow and self._draw.random() < 0.3)

    def _outage(self) -> None:
        """The owner is suspended for a while; work may be done and records stored meanwhile."""
        self.cluster.suspend()
        self.cluster.advance(self._draw.choice([10, 60_000]))
        if self.cluster.waiting and self._draw.random() < 0.5:
            self.cluster.acknowledge()
        if self._draw.random() < 0.5:
            self._do_all_work()
        self.cluster.resume()

    def _do_all_work(self) -> None:
        while self.cluster.work:
            self.cluster.feed(answer_to(self.cluster.work.popleft()))

    # --- what must hold

    def check(self) -> None:
        """Compares what is served with a replay of the log.

        Raises:
            Differs: they differ; or a group contradicts itself.
        """
        log, replay = self.cluster.log, self._replay
        for position, record in log[self._replayed :]:
            replay.replay(position, record)
        self._replayed = len(log)
        served, said = self.cluster.shard.groups.get(GROUP), replay.groups.get(GROUP)
        live = served.incremental if served is not None else None
        stored = said.incremental if said is not None else None
        if (live is None) != (stored is None):
            raise Differs(f"served is {live}, the log says {stored}")
        if served is not None and live is not None and stored is not None:
            _check_alike("the log", vars(live), vars(stored))
            _check_itself(live, self._catalog)
            if served.generation != live.epoch:
                raise Differs(f"generation {served.generation} of epoch {live.epoch}")
        if served is not None and said is not None and len(self.steps) % 10 == 0:
            _check_alike("the log", {"offsets": picture(served.offsets)}, {"offsets": picture(said.offsets)})
        if len(self.steps) % 15 == 0:
            copy = through_snapshot(replay, log[-1][0], self._config)
            _check_alike("a snapshot", pictures(replay), pictures(copy))

    def finish(self) -> None:
        """Lets everybody do what is asked of it, until nothing moves; looks at the whole log.

        Raises:
            Differs: the group does not settle, a call has no answer, or the log breaks a promise.
        """
        self.steps.append("finish")
        self.cluster.auto_ack = self.cluster.auto_tick = True
        self.cluster.advance(0)
        while self.cluster.waiting:
            self.cluster.acknowledge()
        rests = Rests(self, _QUIET_ROUNDS)
        for _ in range(_ROUNDS):
            self._do_all_work()
            for stream_id in self._streams.open:
                self.cluster.feed(Beat(stream_id, self._streams.next_beat()))
            for member_id in sorted(self._group.members if self._group is not None else ()):
                self._live_on(member_id)
            self.cluster.advance(1_000)
            self.check()
            self._take_answers()
            if rests.long_enough():
                break
        if self._group is not None:
            check_settled(self._group, self._catalog)
        if self._parked:
            raise Differs(f"calls without an answer: {self._parked}")
        if broken := broken_promises(self.cluster):
            raise Differs(f"the log breaks a promise: {broken}")

    @property
    def rests(self) -> bool:
        """Whether nothing is on its way, nobody waits or is silent, and everything is shared out."""
        group = self.cluster.shard.groups.get(GROUP)
        if self._parked or self.cluster.work or group is None:
            return False
        if group.members or group.pending_members or group.incremental is None:
            return False
        if any(member.is_away for member in group.incremental.members.values()):
            return False
        try:
            check_settled(group.incremental, self._catalog)
        except Differs:
            return False
        return True

    def _live_on(self, member_id: str) -> None:
        """A member says that it works on what it was told; one whose epochs begin anew joins again."""
        group = self._group
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None or member.is_away:
            return
        begins = group.epoch_of(member) == 0 and not member.told.is_numbered
        calls = self._calls
        self._say_of(member, calls.join_again(member) if begins else calls.beat(group, member, odd=False))
        self._do_all_work()


class Rests:
    """Sees when a life has come to rest for good.

    Args:
        life: what is looked at after each round.
        rounds: in so many nothing may be stored.
    """

    def __init__(self, life: IncrementalShardLife, rounds: int) -> None:
        self._life = life
        self._rounds = rounds
        self._is_whole = len(life.steps) % 8 == 0
        self._length = self._quiet = 0

    def long_enough(self) -> bool:
        """Whether no further round would show anything."""
        length = len(self._life.cluster.log)
        self._quiet = self._quiet + 1 if length == self._length else 0
        self._length = length
        return not self._is_whole and self._quiet >= self._rounds and self._life.rests


def _check_alike(what: str, served: Mapping[str, object], said: Mapping[str, object]) -> None:
    if served != said:
        names = [name for name in {**served, **said} if served.get(name) != said.get(name)]
        differ = [f"{name}: {served.get(name)} and {said.get(name)}" for name in names]
        raise Differs(f"served is not what {what} says: {'; '.join(differ)}")


def _check_itself(group: IncrementalGroup, catalog: Catalog) -> None:
    """What a group keeps twice agrees."""
    members = group.members.values()
    if group.owners != {one: member.member_id for member in members for one in member.held}:
        raise Differs(f"owners: {group.owners}")
    instances = {member.told.group_instance_id: member.member_id for member in members}
    instances.pop("", None)
    if group.statics != instances:
        raise Differs(f"static ids: {group.statics}, of members {instances}")
    targets = [one for member in members for one in member.target]
    if len(targets) != len(set(targets)):
        raise Differs(f"somebody's target has what another's has: {sorted(targets)}")
    for member in members:
        is_woken = member.told.on_session and not member.is_away and group.owes_nothing(member)
        free = member.target - member.held.keys() - group.owners.keys()
        free = frozenset(one for one in free if one[1] not in catalog.removed_of(one[0]))
        if is_woken and free:  # INC-18
            raise Differs(f"{member.member_id} was not given {sorted(free)}, which nobody has")
    if not group.expressions.keys() <= {member.told.topic_regex for member in members}:
        raise Differs(f"expressions that nobody uses: {group.expressions}")
    wanting = {one: member.member_id for member in members for one in member.target}
    if group.wanting != wanting:
        raise Differs(f"wanting: {group.wanting}, of members {wanting}")
    tally = Tally()
    for member in members:
        tally.exchange(None, member.told)
    if group.tally != tally:
        raise Differs(f"counted: {group.tally}, of members {tally}")
    if group.candidates != {member.member_id: member.candidate for member in members}:
        raise Differs(f"assignors would see {group.candidates}")
    if group.held_bytes < 0:
        raise Differs("the group holds fewer bytes than none")


def partitions_of(catalog: Catalog, topic: str) -> list[TopicPartition]:
    """The partitions that a topic has, without those that were removed."""
    numbers = range(catalog.partitions.get(topic, 0))
    return [(topic, number) for number in numbers if number not in catalog.removed_of(topic)]


def check_settled(group: IncrementalGroup, catalog: Catalog) -> None:
    """All that is subscribed to is worked on, and nothing else, unless somebody is away."""
    members = group.members.values()
    if not members or any(member.is_away for member in members):
        return
    if group.state is not IncrementalGroupState.STABLE:
        raise Differs(f"{group.state} for ever: {dict(group.members)}")
    wanted = {topic for member in members for topic in group.topics_of(member.told)}
    there = {one for name in wanted for one in partitions_of(catalog, name)}
    assigned = {one for member in members for one in member.assigned}
    if left := there - assigned:
        raise Differs(f"nobody works on {sorted(left)}")
    if gone := {one for one in assigned if one[1] in catalog.removed_of(one[0])}:
        raise Differs(f"somebody works on {sorted(gone)}, which was removed")
    for member in members:
        if member.stale(group.renewed):
            raise Differs(f"{member.member_id} has something of a deleted topic: {member.held}")
        # As in Kafka, a member without numbers keeps what an expression matched that it has dropped.
        unwanted = {one for one in member.assigned if one[0] not in group.topics_of(member.told)}
        if member.told.is_numbered and unwanted:
            raise Differs(f"{member.member_id} works on {sorted(unwanted)}, which it does not want")
