"""The core and the model of groups that change their kind, side by side on the same random histories.

Processes of all sorts come, join, sync, commit, leave and hear that the group is of the other kind;
operators, the policy and old clients change that; calls are late or come twice, answers are lost;
another coordinator loads the log, or a snapshot.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.lives.incremental_shard import GROUP
from kit.lives.kinds_process import SORTS
from kit.logs.core_audit import broken_promises
from model.incremental.kinds_state import Call, change
from model.kinds_beside_core import NOTHING, PARTITIONS, POLICY_MS, KindsBesideCore
from muster_core.events import GroupRequest, StreamBroken
from muster_protos.muster.v1.coordinator_pb2 import JoinGroupRequest
from muster_protos.muster.v1.group_conversion_pb2 import (
    GROUP_KIND_CLASSIC,
    GROUP_KIND_INCREMENTAL,
    ConvertGroupRequest,
    ConvertGroupResponse,
    GroupKind,
)

STEPS = (
    *(
        "go",
        "go",
        "go",
        "round",
        "round",
        "commit",
        "come",
        "enter",
        "rejoin",
        "part",
        "lost",
        "late",
        "copy",
    ),
    *("arrive", "leave", "classic", "incremental", "policy", "replay", "snapshot", "stream"),
)
OUT = frozenset({"out", "refused"})


class Late(NamedTuple):
    """A call that is on its way: the model's, the message, and of which join of its process it is."""

    call: Call
    request: GroupRequest
    join: tuple[int, int]


class SideBySide:
    """One history, played by both.

    Args:
        seed: of the late calls that come, and of what is committed.
        both: what plays it.
    """

    def __init__(self, seed: int, both: KindsBesideCore) -> None:
        self._draw = random.Random(seed)
        self._both = both
        self._on_their_way: list[Late] = []

    def play(self, who: int, step: str) -> None:
        """A step, and what follows from it; both must come to the same group."""
        self._both.forget_target()
        getattr(self, "_" + step)(who)
        self._both.deliver()
        self._both.compare(f"{step} of {who}")

    # --- steps of processes

    def _go(self, who: int, *, lost: bool = False) -> None:
        if (call := self._next(who)) is not None:
            self._both.ask(call, lost=lost)

    def _round(self, _: int) -> None:
        for who in range(self._both.bounds.processes):
            self._go(who)
            self._both.deliver()

    def _lost(self, who: int) -> None:
        self._go(who, lost=True)

    def _come(self, who: int) -> None:
        """It comes as one that can be classic, if it can."""
        both = self._both
        if who in both.bounds.raw or both.state.club.seats[who]:
            self._enter(who)
        elif self._may_come(who, takes_over=True):
            both.processes[who].begin()
            both.state = change(both.state, who, mode="joining", number=0, version=0, owns=NOTHING)
            self._go(who)

    def _enter(self, who: int) -> None:
        """It comes as an incremental one, or does so again where it was not answered."""
        if who in self._both.bounds.old or not self._may_come(who, takes_over=False):
            return
        if self._both.state.club.seats[who] is None:
            self._both.processes[who].begin()
        self._both.ask(Call("enter", who))

    def _may_come(self, who: int, *, takes_over: bool) -> bool:
        """Whether it is out; a static id passes on in a classic group alone, where the model has that."""
        state, twins = self._both.state, self._both.bounds.twins
        if who in twins:
            other = twins[twins[0] == who]
            is_there = state.workers[other].mode not in OUT or state.club.seats[other] is not None
            takes_over = takes_over and who == twins[1] and state.club.kind == "classic"
            if is_there and not (takes_over and state.club.seats[other]):
                return False
        return state.workers[who].mode in OUT

    def _rejoin(self, who: int) -> None:
        if self._both.state.workers[who].mode == "stable":
            self._stop(who)
            self._go(who)

    def _part(self, who: int) -> None:
        """A list with one that was taken and that it has not stopped."""
        call, club = self._next(who), self._both.state.club
        if call is not None and call.kind == "beat":
            taken = [p for p, holder in enumerate(club.holders) if holder == who and club.taken[p]]
            call = call._replace(data=tuple(call.data[p] or int(p in taken[:1]) for p in range(PARTITIONS)))
        if call is not None:
            self._both.ask(call)

    def _commit(self, who: int) -> None:
        """It commits what it runs; after a conversion of which it has not heard anything (INC-77)."""
        worker, process = self._both.state.workers[who], self._both.processes[who]
        unheard = worker.mode == "stable" and self._both.state.club.kind == "incremental"
        if owned := [p for p, token in enumerate(worker.owns) if token or unheard]:
            p = self._draw.choice(owned)
            named = worker.owns[p] if process.names_tokens else 0
            call = Call("commit", who, worker.number, 0, (p, named, worker.owns[p]))
            if self._draw.random() < 0.5:
                self._put_off(call)
            self._both.ask(call)

    def _leave(self, who: int) -> None:
        both = self._both
        if both.state.workers[who].mode in {"stable", "incremental", "returning"}:
            both.processes[who].ask(Call("leave", who), {})
            both.state = change(both.state, who, mode="out", owns=NOTHING, number=0, version=0)
            both.state, _ = both.coordinator.handle(both.state, Call("leave", who))
            both.catch_up()

    def _late(self, who: int) -> None:
        call = self._next(who)
        if call is not None and call.kind != "join":
            self._put_off(call)

    def _copy(self, who: int) -> None:
        if (call := self._next(who)) is not None:
            self._put_off(call)
            self._both.ask(call)

    def _put_off(self, call: Call) -> None:
        """A copy of a call is on its way; of a JoinGroup it is one of an earlier join, by when it comes."""
        process = self._both.processes[call.who]
        if (
            call.kind != "sync" or call.data
        ):  # a later SyncGroup of the same generation would replace a parked one
            late = Late(call, process.request(call, self._both.plan(call)), (process.life, process.seq))
            self._on_their_way.append(late)

    def _arrive(self, _: int) -> None:
        """A late call comes, by no stream. One of an earlier join, or life, is to change nothing."""
        if not self._on_their_way:
            return
        late = self._on_their_way.pop(self._draw.randrange(len(self._on_their_way)))
        process, call, cluster = self._both.processes[late.call.who], late.call, self._both.cluster
        is_earlier = late.join != (process.life, process.seq)
        is_named = isinstance(late.request, JoinGroupRequest) and bool(late.request.member_id)
        if call.kind == "join" and not (is_earlier and is_named):
            return  # its process cannot have sent it, or not under an id that was its own
        cluster.answer(cluster.send(late.request))
        if late.join[0] == process.life and not (is_earlier and call.kind in {"join", "enter", "beat"}):
            self._both.tell(call, delayed=True)
        self._both.catch_up()

    def _stream(self, who: int) -> None:
        process = self._both.processes[who]
        if process.stream:
            self._both.cluster.feed(StreamBroken(process.stream, True))
            process.reconnect()

    def _next(self, who: int) -> Call | None:
        """What a process asks next; None: nothing, or it waits for an answer."""
        if self._both.processes[who].waits is not None:
            return None
        if self._both.state.workers[who].mode == "returning":
            self._stop(who)
        worker = self._both.state.workers[who]
        runs = tuple(int(bool(token)) for token in worker.owns)
        match worker.mode:
            case "joining":
                return Call("join", who, worker.number, 0, runs)
            case "syncing":
                return Call("sync", who, worker.number, 0, self._both.assignment(who))
            case "stable":
                return Call("heartbeat", who, worker.number)
            case "incremental":
                return Call("beat", who, worker.number, worker.version, runs)
        return None

    def _stop(self, who: int) -> None:
        """It stops what it does not keep, in order to join."""
        both = self._both
        owns = both.state.workers[who].owns if who in both.bounds.keep else NOTHING
        both.state = change(both.state, who, mode="joining", owns=owns)
        both.processes[who].stop()

    # --- steps of others

    def _incremental(self, _: int) -> None:
        """An operator wants the group to be incremental."""
        if self._converts(
            GROUP_KIND_INCREMENTAL, "classic", may=self._both.model.can_convert(self._both.state)
        ):
            self._both.converted()

    def _classic(self, _: int) -> None:
        both = self._both
        if self._converts(GROUP_KIND_CLASSIC, "incremental", may=both.coordinator.can_go_back(both.state)):
            both.state = both.coordinator.convert_back(both.state)

    def _converts(self, kind: GroupKind.ValueType, was: str, *, may: bool) -> bool:
        """Whether an operator who wants a kind gets it, where it was of the other; `may` says the model."""
        answer = self._both.cluster.ask(ConvertGroupRequest(group_id=GROUP, kind=kind))
        assert isinstance(answer, ConvertGroupResponse)
        club, joined = self._both.state.club, self._both.state.joined
        if not any(club.seats) or club.kind != was:
            return False
        if joined is not None and any(joined[who] is not None for who in self._both.bounds.old):
            may = False  # who is in its first join is asked, too (INC-71)
        assert bool(answer.error_code) is not may, answer
        return may

    def _policy(self, _: int) -> None:
        """Time passes in which nobody joins."""
        both = self._both
        club, group = both.state.club, both.group
        may = club.kind == "classic" and any(club.seats) and both.bounds.auto
        may = may and both.model.can_convert(both.state) and group is not None
        members = group.members.values() if group is not None else ()
        may = may and all(one.recorded and one.stream_id is not None for one in members)
        both.cluster.advance(2 * POLICY_MS + 1_000)
        assert (club.kind == "classic" and both.core is not None) is may
        if may:
            both.converted()

    def _replay(self, _: int) -> None:
        self._on_their_way.clear()
        self._both.take_over(stored=False)

    def _snapshot(self, _: int) -> None:
        self._on_their_way.clear()
        self._both.take_over(stored=True)


def play(
    seed: int,
    sorts: Sequence[str],
    streams: frozenset[int],
    auto: bool,
    twins: bool,
    steps: Sequence[tuple[int, str]],
) -> KindsBesideCore:
    """Plays a history to its end; the processes come first."""
    twins = twins and sorts[0] in {"eager", "keeps"}
    sorts = [*sorts, sorts[0]] if twins else sorts
    both = KindsBesideCore(seed, sorts, streams, auto=auto, twins=twins)
    side_by_side = SideBySide(seed, both)
    for who, step in (*((who, "come") for who in range(len(sorts))), *steps):
        side_by_side.play(who % len(sorts), step)
    return both


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.integers(0, 1 << 16),
    st.lists(st.sampled_from(("eager", *SORTS)), min_size=2, max_size=4),
    st.frozensets(st.integers(0, 4)),
    st.booleans(),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(STEPS)), min_size=50, max_size=100),
)
def test_core_and_model_come_to_the_same_group(
    seed: int,
    sorts: list[str],
    streams: frozenset[int],
    auto: bool,
    twins: bool,
    steps: list[tuple[int, str]],
) -> None:
    assert broken_promises(play(seed, sorts, streams, auto, twins, steps).cluster) == []
