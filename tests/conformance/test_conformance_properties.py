"""Random events through the core: what must hold after each of them, whatever came before.

Members join, sync, beat, commit and leave, in and out of turn; static ones are taken over; callers go
away; the log is slow; the shard is suspended, unloaded and loaded again with some of what was in flight.
The records are checked against the promises about logs (`muster_core.audit.invariants`), the memory
against its own books, and a replay of any beginning of the log against what was acknowledged then.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from kit.lives.virtual_shard import VirtualShard
from muster_core.audit.groups.group_checker import GroupChecker
from muster_core.audit.invariants import Findings
from muster_core.clock import Now
from muster_core.config import GroupConfig
from muster_core.error_code import (
    COORDINATOR_NOT_AVAILABLE,
    FENCED_INSTANCE_ID,
    MEMBER_ID_REQUIRED,
    NONE,
    NOT_COORDINATOR,
    UNKNOWN_MEMBER_ID,
)
from muster_core.events import (
    Attach,
    Beat,
    Detach,
    Event,
    GroupRequest,
    StreamBroken,
    TopicsChanged,
    Unload,
)
from muster_core.features import ALL_FEATURES
from muster_core.log.record_run import RecordRun
from muster_core.position import NOWHERE, Position
from muster_core.shard import Shard
from muster_core.state.group import Group
from muster_core.state.group_state import GroupState
from muster_core.state.members.member_secret import OPEN
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, session_pb2

CONFIG = GroupConfig(
    min_session_timeout_ms=100,
    initial_rebalance_delay_ms=50,
    max_size=4,
    max_pending_members=3,
    new_member_join_timeout_ms=5_000,
    offsets_retention_ms=4_000,
    retention_check_interval_ms=500,
    append_timeout_ms=300,
)
LONGEST_MS = 40_000
SHRINKING_S = 20  # a life that fails is shown with fewer steps; Hypothesis takes five minutes for that
PARTITIONS = range(4)
LIAR = 3  # claims to hold what others hold
PROTOCOLS = [["range"], ["range", "sticky"], ["sticky", "range"], ["sticky"]]

seats = st.integers(0, 6)
protocol_lists = st.sampled_from([["range"], *PROTOCOLS])
sessions = st.sampled_from([9_000, 9_000, 9_000, 1_000, 200])


def _code_of(answer: Any) -> int:
    if isinstance(answer, coordinator_pb2.LeaveGroupResponse) and answer.members:
        return answer.members[0].error_code
    if isinstance(answer, coordinator_pb2.OffsetCommitResponse):
        return answer.topics[0].partitions[0].error_code
    return int(answer.error_code)


class Seat:
    """One process: dynamic, or one of two that share an instance id."""

    def __init__(self, number: int) -> None:
        self.instance = {4: "i", 5: "i", 6: "j"}.get(number, "")
        self.secret = bytes([number]) * 16 if number % 2 else b""
        self.member_id = ""
        self.generation = -1
        self.members: list[str] = []
        self.join_seq = self.commit_seq = 0


class GroupLife(RuleBasedStateMachine):
    """One group on one shard."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = VirtualShard(CONFIG)
        self.seats = [Seat(number) for number in range(7)]
        self.sent: dict[int, tuple[Seat, GroupRequest]] = {}
        self.strangers: set[int] = set()
        self.cancelled: set[int] = set()
        self.suspended = False
        self.checked = 0
        self.findings = Findings()
        self.checker = GroupChecker(self.findings, trimmed=False)
        self.tokens: dict[tuple[str, int], Position] = {}
        self.known: dict[int, Any] = {}
        self.streams = 0

    # --- what happens

    def call(self, seat: Seat, message: GroupRequest) -> None:
        self.sent[self.cluster.send(message)] = (seat, message)
        self.read_answers()

    def read_answers(self) -> None:
        for call_id, answer in self.cluster.answers.items():
            seat, message = self.sent.pop(call_id)
            if isinstance(answer, coordinator_pb2.JoinGroupResponse):
                if answer.error_code in (NONE, MEMBER_ID_REQUIRED):
                    seat.member_id = answer.member_id
                if answer.error_code == 0:
                    seat.generation = answer.generation
                    seat.members = [entry.member_id for entry in answer.members]
                    assert answer.leader == answer.member_id or not seat.members
                if answer.error_code in (UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID):
                    seat.member_id, seat.generation = "", -1
            if call_id in self.strangers:
                assert _code_of(answer) in (
                    UNKNOWN_MEMBER_ID,
                    FENCED_INSTANCE_ID,
                    COORDINATOR_NOT_AVAILABLE,
                    NOT_COORDINATOR,
                ), answer
            assert answer.DESCRIPTOR.name == message.DESCRIPTOR.name.replace("Request", "Response")
        self.cluster.answers.clear()

    @rule(number=seats, protocols=protocol_lists, session_ms=sessions)
    def join(self, number: int, protocols: list[str], session_ms: int) -> None:
        seat = self.seats[number]
        seat.join_seq += 1
        metadata = common_pb2.Subscription(version=1, topics=["t"], keeps_owned=True)
        group = self.group
        if group is not None:
            held = [p for (_, p), (who, _) in group.owners.items() if who == seat.member_id or number == LIAR]
            metadata.owned_partitions.add(topic="t", partitions=held)
        self.call(
            seat,
            coordinator_pb2.JoinGroupRequest(
                group_id="g",
                member_id=seat.member_id,
                group_instance_id=seat.instance,
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=2_000,
                protocol_type="consumer",
                protocols=[
                    coordinator_pb2.GroupProtocol(name=name, metadata=metadata.SerializeToString())
                    for name in protocols
                ],
                client_id=f"c{number}",
                member_secret=seat.secret,
                member_seq=seat.join_seq,
                disconnect_grace_ms=150,
            ),
        )

    @rule(numbers=st.sets(seats, min_size=1, max_size=4), protocols=protocol_lists, session_ms=sessions)
    def join_together(self, numbers: set[int], protocols: list[str], session_ms: int) -> None:
        """What clients do: they use the id that they are told, and wait."""
        for number in sorted(numbers):
            if not self.seats[number].instance and not self.seats[number].member_id:
                self.join(number, protocols, session_ms)
            self.join(number, protocols, session_ms)
        if self.group is not None and not self.group.generation:
            self.time_passes(ms=150)

    @rule(first=st.integers(0, 3))
    def sync_together(self, first: int) -> None:
        for number in range(len(self.seats)):
            if self.seats[number].generation >= 0:
                self.sync(number, first)

    @rule(numbers=st.sets(seats, min_size=1, max_size=4), protocols=protocol_lists, first=st.integers(0, 3))
    def rebalance_together(self, numbers: set[int], protocols: list[str], first: int) -> None:
        """To the end, so that most lives come to assignments and to what follows from them."""
        self.join_together(numbers, protocols, 9_000)
        self.time_passes(ms=2_000)
        self.sync_together(first)

    @rule(number=seats, first=st.integers(0, 3))
    def sync(self, number: int, first: int) -> None:
        seat = self.seats[number]
        plan = []
        for index, member_id in enumerate(seat.members):
            mine = [p for p in PARTITIONS if (p + first) % len(seat.members) == index]
            entry = common_pb2.TopicPartitions(topic="t", partitions=mine)
            assignment = common_pb2.Assignment(version=1, partitions=[entry]).SerializeToString()
            plan.append(
                coordinator_pb2.SyncGroupRequest.Assignment(member_id=member_id, assignment=assignment)
            )
        self.call(
            seat,
            coordinator_pb2.SyncGroupRequest(
                group_id="g",
                member_id=seat.member_id,
                group_instance_id=seat.instance,
                generation=seat.generation,
                member_secret=seat.secret,
                assignments=plan,
            ),
        )

    @rule(number=seats)
    def heartbeat(self, number: int) -> None:
        seat = self.seats[number]
        self.call(
            seat,
            coordinator_pb2.HeartbeatRequest(
                group_id="g",
                member_id=seat.member_id,
                group_instance_id=seat.instance,
                generation=seat.generation,
                member_secret=seat.secret,
            ),
        )

    @rule(number=seats, by_instance=st.booleans())
    def leave(self, number: int, by_instance: bool) -> None:
        seat = self.seats[number]
        leaver = coordinator_pb2.LeaveGroupRequest.Member(
            member_id="" if by_instance else seat.member_id,
            group_instance_id=seat.instance,
            member_secret=seat.secret,
        )
        self.call(seat, coordinator_pb2.LeaveGroupRequest(group_id="g", members=[leaver]))

    @rule(
        number=seats, offset=st.integers(0, 1_000), late=st.sampled_from([-1, -1, 0, 1]), newest=st.booleans()
    )
    def commit(self, number: int, offset: int, late: int, newest: bool) -> None:
        """A new commit, a retry, or one that was overtaken; of the member's generation or of the newest."""
        seat = self.seats[number]
        seat.commit_seq = max(seat.commit_seq, seat.commit_seq - late)
        request = coordinator_pb2.OffsetCommitRequest(
            group_id="g",
            member_id=seat.member_id,
            group_instance_id=seat.instance,
            generation=self.group.generation if newest and self.group is not None else seat.generation,
            member_seq=max(0, seat.commit_seq - max(0, late)),
            member_secret=seat.secret,
        )
        request.topics.add(name="t").partitions.add(partition=number % 4, offset=offset)
        self.call(seat, request)

    @rule(number=st.sampled_from([1, 3, 5]), what=st.sampled_from(["sync", "heartbeat", "commit", "leave"]))
    def speak_for(self, number: int, what: str) -> None:
        """Somebody who knows all of a member but its secret."""
        seat, group = self.seats[number], self.group
        member = None if group is None else group.members.get(seat.member_id)
        if group is None or member is None or member.lock is OPEN:
            return
        who: dict[str, Any] = {"member_id": seat.member_id, "group_instance_id": member.group_instance_id}
        leaver = coordinator_pb2.LeaveGroupRequest.Member(**who)
        messages: dict[str, GroupRequest] = {
            "sync": coordinator_pb2.SyncGroupRequest(group_id="g", generation=group.generation, **who),
            "heartbeat": coordinator_pb2.HeartbeatRequest(group_id="g", generation=group.generation, **who),
            "commit": coordinator_pb2.OffsetCommitRequest(group_id="g", generation=group.generation, **who),
            "leave": coordinator_pb2.LeaveGroupRequest(group_id="g", members=[leaver]),
        }
        if isinstance(commit := messages["commit"], coordinator_pb2.OffsetCommitRequest):
            commit.topics.add(name="t").partitions.add(partition=0, offset=10**9)
        call_id = self.cluster.send(messages[what])
        self.strangers.add(call_id)
        self.sent[call_id] = (Seat(0), messages[what])
        self.read_answers()

    @rule(offset=st.integers(0, 1_000))
    def simple_commit(self, offset: int) -> None:
        request = coordinator_pb2.OffsetCommitRequest(group_id="g", generation=-1)
        request.topics.add(name="u").partitions.add(partition=0, offset=offset)
        self.call(Seat(0), request)

    @rule(what=st.sampled_from(["describe", "list", "fetch", "delete", "delete offsets", "history"]))
    def ask(self, what: str) -> None:
        topics = [common_pb2.TopicPartitions(topic="u", partitions=[0])]
        messages: dict[str, GroupRequest] = {
            "describe": coordinator_pb2.DescribeGroupsRequest(group_ids=["g"]),
            "list": coordinator_pb2.ListGroupsRequest(),
            "fetch": coordinator_pb2.OffsetFetchRequest(
                groups=[coordinator_pb2.OffsetFetchRequest.Group(group_id="g")]
            ),
            "delete": coordinator_pb2.DeleteGroupsRequest(group_ids=["g", "g"]),
            "delete offsets": coordinator_pb2.OffsetDeleteRequest(group_id="g", topics=topics),
            "history": coordinator_pb2.GroupHistoryRequest(group_id="g"),
        }
        self.call(Seat(0), messages[what])

    @rule(ms=st.sampled_from([1, 50, 150, 150, 500, 2_000, 9_000]))
    def time_passes(self, ms: int) -> None:
        self.cluster.advance(ms)
        self.read_answers()

    @rule()
    def a_caller_goes_away(self) -> None:
        for call_id in list(self.sent)[:1]:
            self.cluster.cancel(call_id)
            del self.sent[call_id]
            self.cancelled.add(call_id)
            self.read_answers()

    @rule()
    def the_log_is_slow(self) -> None:
        self.cluster.auto_ack = False

    @precondition(lambda self: self.cluster.waiting)
    @rule()
    def one_append_is_done(self) -> None:
        self.cluster.acknowledge()
        self.read_answers()

    @rule()
    def the_log_is_quick(self) -> None:
        self.cluster.auto_ack = True
        while self.cluster.waiting:
            self.cluster.acknowledge()
        self.read_answers()

    @rule()
    def the_lease_is_lost_and_held_again(self) -> None:
        self.suspended = not self.suspended
        self.cluster.suspend() if self.suspended else self.cluster.resume()
        self.read_answers()
        if self.suspended:
            assert self.sent == {}

    @rule(landed=st.integers(0, 3))
    def another_owner(self, landed: int) -> None:
        """Unloads; so many appends that were on their way have landed all the same; loads."""
        self.cluster.feed(Unload())
        self.read_answers()
        assert self.sent == {}
        assert self.cluster.shard.groups == {}
        self.check_records()
        for append in list(self.cluster.waiting)[:landed]:
            place = self.cluster._next_position()
            self.cluster.log.extend((place.after(i), record) for i, record in enumerate(append.records))
        self.check_records()
        self.checker.claimed()
        self.check_replays()
        now_ms, calls = self.cluster.now_ms, self.cluster._last_call_id
        self.cluster = self.cluster.reloaded()
        self.cluster.now_ms, self.cluster._last_call_id = max(now_ms, self.cluster.now_ms), calls
        self.suspended = False

    @rule(topic=st.sampled_from(["t", "u"]), deleted=st.booleans())
    def a_topic_changes(self, topic: str, deleted: bool) -> None:
        names = frozenset({topic})
        self.cluster.feed(TopicsChanged(names, names if deleted else frozenset()))
        self.read_answers()

    @precondition(lambda self: not self.suspended)
    @rule(number=seats, what=st.sampled_from(["attach", "detach", "beat", "break", "end"]))
    def stream(self, number: int, what: str) -> None:
        seat = self.seats[number]
        who = {"group_id": "g", "member_id": seat.member_id}
        attach = session_pb2.Attach(
            **who,
            group_instance_id=seat.instance,
            generation=seat.generation,
            member_secret=seat.secret,
        )
        events: dict[str, Event] = {
            "attach": Attach(self.streams, attach),
            "detach": Detach(self.streams, session_pb2.Detach(**who)),
            "beat": Beat(self.streams),
            "break": StreamBroken(self.streams),
            "end": StreamBroken(self.streams, suspect=False),
        }
        self.cluster.feed(events[what])
        self.streams += what in ("break", "end")
        self.read_answers()

    # --- what holds

    @property
    def group(self) -> Group | None:
        return self.cluster.shard.groups.get("g")

    @invariant()
    def every_call_is_open_or_answered(self) -> None:
        assert set(self.sent) == set(self.cluster.shard._context.calls)

    @invariant()
    def whatever_waits_will_be_woken(self) -> None:
        context = self.cluster.shard._context
        if self.suspended:
            assert not context.calls
            return
        assert self.cluster.deadline_ms is not None
        parked = set()
        for group in self.cluster.shard.groups.values():
            watched = context.purgatory._watched
            joins = [op for op in watched.get(("join", group.group_id), ()) if op.armed]
            syncs = [op for op in watched.get(("sync", group.group_id), ()) if op.armed]
            for member in group.members.values():
                if member.join_call is not None:
                    parked.add(member.join_call)
                    assert joins or group.line.in_flight
                if member.sync_call is not None:
                    parked.add(member.sync_call)
                    assert syncs or group.line.in_flight
            if group.state is GroupState.PREPARING_REBALANCE:
                assert len(joins) == 1 or group.line.in_flight
            if group.state is GroupState.COMPLETING_REBALANCE:
                assert len(syncs) == 1 or group.line.in_flight
        if set(context.calls) - parked:
            assert self.cluster.waiting, "a call that is not parked waits for the log"
            assert all(append.armed for append in context._appends.values() if append.holds is not None)

    @invariant()
    def every_member_has_a_session_or_waits(self) -> None:
        for group in self.cluster.shard.groups.values():
            for member in group.members.values():
                armed = member.heartbeat is not None and member.heartbeat.armed
                assert armed or member.is_waiting or group.line.in_flight or self.suspended

    @invariant()
    def the_books_are_right(self) -> None:
        for group in self.cluster.shard.groups.values():
            members = group.members.values()
            assert group.parked_joins == sum(member.join_call is not None for member in members)
            assert group.pending_sync <= set(group.members)
            assert not set(group.pending_members) & set(group.members)
            assert len(group.pending_members) <= CONFIG.max_pending_members
            assert group.static_members == {m.group_instance_id: m.member_id for m in members if m.is_static}
            assert (group.leader in group.members) if group.members else group.leader == ""
            assert sum(not member.is_static for member in members if member.join_call) <= CONFIG.max_size
            assert group.size_bytes == sum(member.size_bytes for member in members)
            supported = [{name for name, _ in member.terms.protocols} for member in members]
            assert group._supporters.by_all == (set.intersection(*supported) if supported else set())
            if group.members and group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
                assert all(group.protocol_name in dict(member.terms.protocols) for member in members)
            if group.state is GroupState.EMPTY:
                assert not group.members

    @invariant()
    def tokens_only_grow(self) -> None:
        group = self.group
        for partition, (who, position) in (group.owners if group is not None else {}).items():
            assert position >= self.tokens.get(partition, NOWHERE), f"{partition} of {who}"
            self.tokens[partition] = position

    @invariant()
    def check_records(self) -> None:
        for position, record in self.cluster.log[self.checked :]:
            self.checker.add_run(RecordRun(position, [record.SerializeToString()]))
            started = record.generation_started
            assert sum(not member.group_instance_id for member in started.members) <= CONFIG.max_size
        self.checked = len(self.cluster.log)
        assert self.findings.violations == []
        if self.group is not None and self.group.owners:
            assert self.group.owners.items() <= (self.checker._groups["g"].given or {}).items()
        if self.cluster.shard.groups:
            self.known[self.checked] = acknowledged(self.cluster.shard)

    def check_replays(self) -> None:
        """Each beginning of the log gives the state that was acknowledged then, and no dead end."""
        replayed = Shard(0, CONFIG)
        for length, (position, record) in enumerate(self.cluster.log, 1):
            replayed.replay(position, record)
            if length in self.known:
                assert acknowledged(replayed) == self.known[length], f"after {length} records"
        for length in range(1, len(self.cluster.log), max(1, len(self.cluster.log) // 5)):
            shard = Shard(0, CONFIG)
            for position, record in self.cluster.log[:length]:
                shard.replay(position, record)
            effects = shard.loaded(99, Now(10_000, 10_000), ALL_FEATURES)
            for group in shard.groups.values():
                assert group.state in (GroupState.EMPTY, GroupState.STABLE) or effects.next_deadline_ms
        self.known.clear()

    def teardown(self) -> None:
        """Nothing waits for ever."""
        if self.suspended:
            self.the_lease_is_lost_and_held_again()
        self.the_log_is_quick()
        self.cluster.advance(LONGEST_MS)
        self.read_answers()
        assert self.sent == {}
        self.check_records()
        self.check_replays()
        if self.group is not None:
            assert self.group.state is GroupState.EMPTY, "all sessions are over"


def acknowledged(shard: Shard) -> Any:
    """What the log knows of the groups."""
    return {
        group.group_id: (
            group.generation,
            group.assigned_generation,
            {
                member.member_id: (member.group_instance_id, member.token, member.commit_seq)
                for member in group.members.values()
                if member.recorded
            },
            dict(group.owners),
            dict(group.offsets),
            [entry.generation for entry in group.history],
        )
        for group in shard.groups.values()
        if group.generation or len(group.offsets)
    }


@pytest.mark.slow
@pytest.mark.row("MX-11")
@pytest.mark.row("PT-17")
@pytest.mark.row("ST-02")
def test_random_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hypothesis.internal.conjecture.engine.MAX_SHRINKING_SECONDS", SHRINKING_S)
    run_state_machine_as_test(
        GroupLife,
        settings=settings(
            max_examples=400,
            stateful_step_count=60,
            derandomize=True,
            deadline=None,
            database=None,
            phases=[Phase.explicit, Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
