"""Random lives of a group that becomes incremental, and classic again, in any phase, while its members work.

Members join, sync, commit, come to streams, are told that the group is of the other kind, and go on as
members of that; clients come that can only be classic, and operators want either kind; owners follow each
other, the log is slow, topics grow and are deleted meanwhile. What two members work on is never the same; the
rest is checked as in `kit.lives.incremental_fuzz`.
"""

import random
from collections import deque
from dataclasses import replace

from kit.lives.changer import Changer
from kit.lives.incremental_fuzz import CONFIG, IncrementalShardLife, Rests, check_settled, partitions_of
from kit.lives.incremental_shard import GROUP
from kit.lives.played import Differs, played
from kit.logs.core_audit import broken_promises
from muster_core.events import Beat, GroupRequest, StreamBroken
from muster_core.incremental.partitions import TopicPartition, by_topic
from muster_core.state.group_state import GroupState
from muster_protos.muster.v1 import common_pb2, session_pb2
from muster_protos.muster.v1.group_conversion_pb2 import (
    GROUP_KIND_CLASSIC,
    GROUP_KIND_INCREMENTAL,
    ConvertGroupRequest,
)
from muster_protos.muster.v1.group_settings_pb2 import AlterGroupSettingsRequest, GroupSettings

LENGTH = 150
_SILENCE_MS = 1_000
"""A member does something more often: shorter than the grace after a stream."""
_KINDS = ("both",) * 12 + ("classic", "incremental")
"""Of what kinds a member's group can be, as often as it is drawn."""
_ROUNDS = 200
"""Half seconds in which a group settles: longer than two rebalance time-outs of members that died."""
_QUIET_ROUNDS = 12
"""As in `kit.lives.incremental_fuzz`; longer than a group waits for its conversion."""


def life(seed: int, length: int = LENGTH) -> "ConversionLife":
    """Plays the life of a seed to its end.

    Raises:
        Differs: see there.
        Exception: whatever the core raises.
    """
    return played(ConversionLife(random.Random(seed)), length)


class ConversionLife(IncrementalShardLife):
    """A shard with one group whose members can be of either kind.

    Args:
        source: of all draws.
    """

    def __init__(self, source: random.Random) -> None:
        super().__init__(source)
        after_ms = source.choice([200, 1_500, 3_000])
        self._config = replace(
            CONFIG, convert="auto", convert_after_ms=after_ms, incremental_session_timeout_ms=20_000
        )
        self._catalog = replace(self._catalog, partitions={"t": 3, "u": 2}, incarnations={"t": 2, "u": 3})
        self._load([], 10_000)
        self._count = self._heard = 0
        self._pace = source.choice([0.8, 0.2])
        self._keep = source.random() < 0.5
        self._unary = source.choice([0, 0, 0.3])
        self._sent: deque[GroupRequest] = deque(maxlen=60)
        self._offsets: dict[TopicPartition, int] = {}
        self._members: list[Changer] = []
        self._actions = (
            (4, self._begin),
            (60, self._go_on),
            (2, self._end),
            (1, self._all_end),
            (8, self._commit_work),
            (3, self._topic),
            (10, self._some_time_passes),
            (4, self._break_stream),
            (6 if self._slow else 1, self._log),
            (3, self._another_owner),
            (1, self._outage),
            (3, self._together),
            (2, self._operator),
            (1, self._settings),
            (3, self._late_copy),
        )

    @property
    def conversions(self) -> int:
        """How many the log has."""
        return self.cluster.kinds().count("group_converted")

    @property
    def reversions(self) -> int:
        """How often it became classic again, as the log has it."""
        return self.cluster.kinds().count("group_reverted")

    def step(self) -> None:
        """Lets something happen."""
        super().step()
        self._hear()
        self._no_two()
        self._no_progress_lost()

    def _plan(self, members: list[str]) -> dict[str, bytes]:
        shares: dict[str, list[TopicPartition]] = {member: [] for member in members}
        everything = [one for topic in ("t", "u") for one in partitions_of(self._catalog, topic)]
        for at, partition in enumerate(everything):
            shares[members[at % len(members)]].append(partition)
        return {
            who: common_pb2.Assignment(version=1, partitions=by_topic(share)).SerializeToString()
            for who, share in shares.items()
        }

    def _begin(self) -> None:
        if len(self._members) < 4:
            self._count += 1
            taken = {member.instance for member in self._members}
            instance = self._draw.choice(["", "i", "j"])
            instance = "" if instance in taken else instance
            stream_id, kinds = self._streams.one(), self._draw.choice(_KINDS)
            name = f"m{self._count}"
            stream_id = 0 if self._draw.random() < self._unary else stream_id
            self._members.append(
                Changer(
                    self.cluster,
                    name,
                    instance,
                    stream_id,
                    source=self._draw,
                    sent=self._sent,
                    keeps=self._keep,
                    kinds=kinds,
                )
            )

    def _go_on(self) -> None:
        for member in self._draw.sample(self._members, len(self._members)):
            if self._draw.random() < self._pace or self.cluster.now_ms - member.acted_ms > _SILENCE_MS:
                member.act(self._plan)
                self._hear()
                self._no_two()
        for stream_id in self._streams.open:
            self.cluster.feed(Beat(stream_id, self._streams.next_beat()))

    def _together(self) -> None:
        cluster, was_quick = self.cluster, self.cluster.auto_ack
        cluster.auto_ack = False
        for _ in range(3):
            self._go_on()
        cluster.auto_ack = was_quick
        while was_quick and cluster.waiting:
            cluster.acknowledge()

    def _end(self) -> None:
        if self._members:
            member = self._members.pop(self._draw.randrange(len(self._members)))
            if self._draw.random() < 0.6:  # else it dies
                member.end()

    def _operator(self) -> None:
        """Wants a kind, whichever the group is of."""
        kind = self._draw.choice([GROUP_KIND_CLASSIC, GROUP_KIND_CLASSIC, GROUP_KIND_INCREMENTAL])
        self._send(ConvertGroupRequest(group_id=GROUP, kind=kind))

    def _settings(self) -> None:
        """An operator sets what holds moves back, or takes it back."""
        wanted = GroupSettings(hold=self._draw.choice([True, False]))
        unset = ["hold"] if self._draw.random() < 0.5 else []
        self._send(AlterGroupSettingsRequest(group_id=GROUP, set=None if unset else wanted, unset=unset))

    def _late_copy(self) -> None:
        """A call that was made some time ago comes once more, by no stream; nobody reads its answer."""
        if self._sent:
            self._send(self._draw.choice(self._sent))

    def _all_end(self) -> None:
        """The group empties: who comes next is classic again."""
        while self._members and self._draw.random() < 0.97:
            self._members.pop().end()

    def _commit_work(self) -> None:
        if self._members:
            request = self._draw.choice(self._members).commit(self.cluster.now_ms)
            if request is not None:
                self._sent.append(request)
                self._send(request)

    def _some_time_passes(self) -> None:
        for _ in range(self._draw.choice([1, 3, 6])):
            self.cluster.advance(500)
            self._hear()
            self._go_on()

    def _break_stream(self) -> None:
        stream_id = self._streams.one()
        self._streams.close(stream_id)
        self.cluster.feed(StreamBroken(stream_id, True))
        for member in self._members:
            if member.stream_id == stream_id:
                member.connect(self._streams.one())

    def _another_owner(self) -> None:
        super()._another_owner()
        self._heard = 0
        for member in self._members:
            member.move(self.cluster, self._streams.one())

    def _outage(self) -> None:
        self.cluster.suspend()
        self.cluster.advance(2_000)
        if self.cluster.waiting and self._draw.random() < 0.5:
            self.cluster.acknowledge()
        self.cluster.resume()

    def _hear(self) -> None:
        pushes, self._heard = self.cluster.pushes[self._heard :], len(self.cluster.pushes)
        for push in pushes:
            message = push.message
            who = (
                message.response.member_id
                if isinstance(message, session_pb2.MemberNews)
                else message.member_id
            )
            for member in self._members:
                if (member.stream_id, member.member_id) == (push.stream_id, who):
                    member.told(message)

    def _no_two(self) -> None:
        works: dict[TopicPartition, str] = {}
        for member in self._members:
            for partition in member.owned:
                if partition in works:
                    raise Differs(f"{works[partition]} and {member.member_id} work on {partition}")
                works[partition] = member.member_id

    def _no_progress_lost(self) -> None:
        """Commits name the time at which they were made, and none that is older counts later."""
        group = self.cluster.shard.groups.get(GROUP)
        now = {} if group is None else {where: found[0] for where, found in group.offsets.table.items()}
        if back := {where for where, offset in now.items() if offset < self._offsets.get(where, 0)}:
            raise Differs(f"progress of {sorted(back)} goes back from {self._offsets} to {now}")
        self._offsets = now

    @property
    def rests(self) -> bool:
        """As in `IncrementalShardLife`; a classic group is at rest, too, and who died is gone."""
        group = self.cluster.shard.groups.get(GROUP)
        if group is None or not {*group.members} <= {member.member_id for member in self._members}:
            return False
        if group.incremental is not None and group.incremental.members:
            there = {*group.incremental.members}
            return super().rests and there == {member.member_id for member in self._members}
        is_quiet = not (self._parked or self.cluster.work or group.pending_members)
        return is_quiet and group.state is GroupState.STABLE and len(group.members) == len(self._members)

    def finish(self) -> None:
        """Lets everybody work until nothing moves; looks at the whole log.

        Raises:
            Differs: see there.
        """
        self.steps.append("finish")
        self.cluster.auto_ack = True
        while self.cluster.waiting:
            self.cluster.acknowledge()
        self._begin()
        rests = Rests(self, _QUIET_ROUNDS)
        for _ in range(_ROUNDS):
            for _ in range(3):
                self._hear()
                for member in self._members:
                    member.act(self._plan)
            self._do_all_work()
            self._hear()
            self._no_two()
            for stream_id in self._streams.open:
                self.cluster.feed(Beat(stream_id, self._streams.next_beat()))
            self.cluster.advance(500)
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
