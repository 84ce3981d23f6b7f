"""A core shard and the model of a group of two kinds (`model.incremental.kinds`), which are told the same.

What leaders and the core's assignor draw becomes the model's assignment and target. Whoever is on a stream is
stepped by the coordinator alone, so the model does that for it.
"""

import random
from collections.abc import Mapping, Sequence, Set
from functools import partial

from kit.lives.incremental_shard import FEATURES, GROUP, tell_partitions
from kit.lives.kinds_process import LONG_MS, SORTS, KindsProcess
from kit.lives.virtual_shard import VirtualShard
from kit.logs.snapshots import Records, through_snapshot
from model.incremental.kinds import ChangeModel
from model.incremental.kinds_coordinator import KindsCoordinator
from model.incremental.kinds_state import Call, ChangeBounds, change, seat_of, store
from model.incremental.rules import Rules
from muster_core.config import GroupConfig
from muster_core.incremental.group import IncrementalGroup
from muster_core.incremental.partitions import TopicPartition, by_topic
from muster_core.incremental.targets.target import Question
from muster_core.position import Position
from muster_core.protocol.room import Room
from muster_core.state.group import Group
from muster_core.state.group_state import GroupState
from muster_protos.muster.v1 import common_pb2

PARTITIONS, POLICY_MS = 3, 5_000
NOTHING = (0,) * PARTITIONS
_PHASES = {
    GroupState.EMPTY: "stable",
    GroupState.STABLE: "stable",
    GroupState.PREPARING_REBALANCE: "preparing",
    GroupState.COMPLETING_REBALANCE: "completing",
}


class KindsBesideCore:
    """Both, with their processes, of which none is there yet.

    Args:
        seed: of assignments and targets.
        sorts: of the processes.
        streams: those that are on streams.
        auto: whether the group changes its kind by itself.
        twins: whether the last process has the static id of the first one, after that.

    Attributes:
        bounds: of the model.
        model: its workers.
        coordinator: its coordinator.
        state: where it is.
        cluster: the core.
        processes: who makes calls there.
    """

    def __init__(
        self, seed: int, sorts: Sequence[str], streams: frozenset[int], *, auto: bool, twins: bool
    ) -> None:
        of = {sort: tuple(who for who, one in enumerate(sorts) if one == sort) for sort in SORTS}
        self.bounds = ChangeBounds(
            len(sorts),
            PARTITIONS,
            members=0,
            old=of["old"],
            raw=of["raw"],
            mute=of["mute"],
            keep=of["keeps"],
            auto=auto,
            twins=(0, len(sorts) - 1) if twins else (-1, -1),
        )
        self.model = ChangeModel(Rules(), self.bounds)
        self.coordinator = KindsCoordinator(Rules(), self.bounds)
        self.state = self.model.initial()
        self.state = self.state._replace(club=self.state.club._replace(number=0, generation=0))
        self._config = GroupConfig(
            convert="auto" if auto else "never",
            convert_after_ms=POLICY_MS,
            initial_rebalance_delay_ms=0,
            new_member_join_timeout_ms=LONG_MS,
            incremental_session_timeout_ms=LONG_MS,
            incremental_disconnect_grace_ms=LONG_MS,
            incremental_assignment_interval_ms=0,
        )
        self._draw = random.Random(seed)
        self._drawn: tuple[int, ...] | None = None
        self._tokens: dict[int, tuple[Position, int]] = {}
        self.cluster = self._owner([], 10_000)
        self.processes = [
            KindsProcess(
                self.cluster,
                who,
                sort,
                instance="i" if who in self.bounds.twins else "",
                stream=who + 1 if who in streams else 0,
            )
            for who, sort in enumerate(sorts)
        ]

    def _owner(self, log: Records, now_ms: int, *, stored: bool = False) -> VirtualShard:
        room = Room(assignors={"uniform": self._assign, "range": self._assign})
        through = partial(through_snapshot, config=self._config) if stored else None
        cluster = VirtualShard(self._config, log, FEATURES, now_ms=now_ms, room=room, through=through)
        tell_partitions(cluster, PARTITIONS, frozenset())
        return cluster

    def take_over(self, *, stored: bool) -> None:
        """Another coordinator serves the group, by the log, or by a snapshot of all of it."""
        self.cluster = self._owner(self.cluster.log, self.cluster.now_ms, stored=stored)
        self.state = self.coordinator.take_over(self.state)
        for who, process in enumerate(self.processes):
            club = self.state.club
            process.move(self.cluster, is_known=club.seats[who] is not None or who in club.replaced)
        self.catch_up()

    # --- what is drawn

    def _assign(self, question: Question) -> Mapping[str, list[TopicPartition]]:
        ids = {int(one.rack_id): one.member_id for one in question.candidates.values()}
        had = {n: int(one.rack_id) for one in question.candidates.values() for _, n in one.before}
        self._drawn = drawn = self._share(sorted(ids), had)
        return {ids[who]: [("t", p) for p in range(PARTITIONS) if drawn[p] == who] for who in ids}

    def _share(self, among: Sequence[int], had: Mapping[int, int]) -> tuple[int, ...]:
        """A process for each partition, often the one that had it."""
        drawn = [self._draw.choice(among) for _ in range(PARTITIONS)]
        return tuple(had.get(p, who) if self._draw.random() < 0.6 else who for p, who in enumerate(drawn))

    def assignment(self, who: int) -> tuple[int, ...]:
        """What a process hands in with its SyncGroup; nothing where it does not lead."""
        seats = [place for place, seat in enumerate(self.state.club.seats) if seat]
        if not self.processes[who].leads or not seats:
            return ()
        return self._share(seats, {p: one for p, one in enumerate(self.state.club.holders) if one in seats})

    def plan(self, call: Call) -> dict[str, bytes]:
        """The same by member id, as a leader publishes it."""
        members = (
            self.group.members.values()
            if self.group is not None and call.kind == "sync" and call.data
            else ()
        )
        plan: dict[str, bytes] = {}
        for one in members:
            share = by_topic(("t", p) for p, who in enumerate(call.data) if who == int(one.client_id))
            plan[one.member_id] = common_pb2.Assignment(version=1, partitions=share).SerializeToString()
        return plan

    # --- calls

    def ask(self, call: Call, *, lost: bool = False) -> None:
        """A process makes a call; lost: it does not hear the answer."""
        self._drawn = None
        who, process, seat = call.who, self.processes[call.who], self.state.club.seats[call.who]
        had_id = self._id_of(who)
        answer = process.ask(call, self.plan(call))
        if process.went_on and seat is not None:  # it knows now of the generation that it had not heard of
            if had_id != self._id_of(who):
                self._take_over_again(who)
            self.state = change(self.state, who, number=seat.number)
            if process.waits is not None:
                process.waits = call._replace(number=seat.number)
            call = call._replace(number=seat.number)
        self._answered(call, answer, lost=lost)

    def _id_of(self, who: int) -> str:
        """The id of a process as a member of a classic group; empty: it is none."""
        members = self.group.members.values() if self.group is not None else ()
        return next((one.member_id for one in members if one.client_id == str(who)), "")

    def _take_over_again(self, who: int) -> None:
        """A process that was never told its id joins anew by its static one: what it has gets new tokens."""
        club = self.state.club
        owned = zip(club.holders, club.tokens, strict=True)
        tokens = tuple(club.position + 1 if holder == who else token for holder, token in owned)
        self.state = store(self.state, tokens=tokens)

    def deliver(self) -> None:
        """Who waits hears its answer, where there is one; the model is asked again by everybody who waits."""
        waiting = [one for one in self.processes if one.waits is not None]
        while answered := [one for one in waiting if one.waits is not None and one.is_answered]:
            for process in answered:
                self._drawn = None
                self._answered(*process.heard_at_last())
        for process in waiting:
            if process.waits is not None:
                self._answered(process.waits, "wait")

    def _answered(self, call: Call, answer: str, *, lost: bool = False) -> None:
        """The model handles a call of which the core's answer is known; both must have said the same."""
        who, club, process = call.who, self.state.club, self.processes[call.who]
        was_out = club.seats[who] is None
        enters = answer == "converted" and was_out
        if enters:  # it goes on with the join that the model has made of this one
            entered = process.ask(Call("enter", who), {})
            if who in club.replaced and entered == "unknown":  # another process has its static id
                answer, enters = entered, False
            else:
                assert entered == "list", (call, entered)
        expected = answer
        if not (answer == "unknown" and was_out and who in club.replaced):  # it stops for good
            self.tell(call)
            expected = self._expected
        if call.kind == "commit":
            expected = "stored" if self.state.club.position > club.position else "rejected"
        assert answer == expected, (call, answer, expected, self.state)
        self.catch_up({who} if was_out else set())
        if lost and answer != "wait" and not enters:
            process.lose(call)
            return
        for heard in (answer, *(["list"] if enters else [])):
            self.state = self.model.hear(self.state, call if heard == answer else Call("enter", who), heard)
            process.hear(heard)
        assert process.owned.keys() == {p for p, token in enumerate(self.state.workers[who].owns) if token}, (
            call
        )

    def tell(self, call: Call, *, delayed: bool = False) -> None:
        """The model handles a call that the core has handled."""
        self._take_target()
        self.state, self._expected = self.coordinator.handle(self.state, call, delayed=delayed)

    # --- what the coordinator does by itself

    def forget_target(self) -> None:
        """Nothing was drawn yet in what follows."""
        self._drawn = None

    def _take_target(self) -> None:
        """The target that was due is there, if the core has drawn it."""
        club, core = self.state.club, self.core
        if core is None or club.kind != "incremental" or club.target or core.target_epoch != club.number:
            return
        if self._drawn is not None:
            self.state, self._drawn = store(self.state, target=self._drawn), None

    def catch_up(self, entered: Set[int] = frozenset()) -> None:
        """A target; steps of who is on streams, and of who has entered just now."""
        club, group, core = self.state.club, self.group, self.core
        if group is not None and not any(club.seats) and self.state.joined is None:
            assert 0 <= group.generation - club.number <= 1, "a classic group counts that it is empty"
            self.state = store(self.state, number=group.generation, generation=group.generation)
        if core is None or club.kind != "incremental":
            return
        self._take_target()
        stepped = {int(one.told.client_id) for one in core.members.values() if one.told.on_session} | entered
        before = None
        while before != self.state.club:
            before = self.state.club
            for who in sorted(stepped):
                self.state, _ = self.coordinator.handle(self.state, Call("beat", who, data=NOTHING))

    def converted(self) -> None:
        """The core is incremental. That gives out what nobody has, or no generation assigned."""
        phase = self.state.club.phase
        self.state = self.coordinator.convert(self.state)
        club, core = self.state.club, self.core
        assert core is not None
        if core.epoch > club.number:
            assert -1 in club.holders or phase == "completing"
            self.state = store(self.state, target=(), number=club.number + 1)
        self.catch_up()

    # --- what must be equal

    @property
    def group(self) -> Group | None:
        """The group as the core has it."""
        return self.cluster.shard.groups.get(GROUP)

    @property
    def core(self) -> IncrementalGroup | None:
        """The same where it is an incremental one with members."""
        core = None if self.group is None else self.group.incremental
        return core if core is not None and core.members else None

    def compare(self, after: str) -> None:
        """Whether both have come to the same group."""
        club, group, core = self.state.club, self.group, self.core
        assert not self.model.broken(self.state), (after, self.model.broken(self.state))
        seats = {who for who, seat in enumerate(club.seats) if seat}
        if group is None or not group.has_members:
            assert not seats, after
            return
        if core is None:
            ids = {one.member_id: int(one.client_id) for one in group.members.values() if one.recorded}
            owners = {p: (ids[who], token) for (_, p), (who, token) in group.owners.items() if who in ids}
            phase = "preparing" if self.state.joined is not None else club.phase
            assert (_PHASES[group.state], group.reverted) == (phase, club.reverted), after
        else:
            ids = {one.member_id: int(one.told.client_id) for one in core.members.values()}
            held = [(one.member_id, *had) for one in core.members.values() for had in one.held.items()]
            owners = {p: (ids[who], had.token) for who, (_, p), had in held}
            self._compare_members(core, after)
        assert not seats or (core is not None) is (club.kind == "incremental"), after
        assert group.generation == club.number, after
        assert sorted(ids.values()) == sorted(seats), after
        holders = {p: holder for p, holder in enumerate(club.holders) if holder >= 0}
        assert {p: who for p, (who, _) in owners.items()} == holders, after
        for p, (_, token) in owners.items():  # tokens of both change together, and grow
            now = token, club.tokens[p]
            had = self._tokens.setdefault(p, now)
            assert now == had or (now[0] > had[0] and now[1] > had[1]), (after, p)
            self._tokens[p] = now

    def _compare_members(self, core: IncrementalGroup, after: str) -> None:
        club = self.state.club
        assert (core.epoch > core.target_epoch) is not bool(club.target), after
        for member in core.members.values():
            who = int(member.told.client_id)
            pending = {p for p, holder in enumerate(club.holders) if holder == who and club.taken[p]}
            assert {p for _, p in member.pending} == pending, (after, who)
            if club.target:
                target = {p for p, wanted in enumerate(club.target) if wanted == who}
                assert {p for _, p in member.target} == target, (after, who)
            if not pending:
                assert core.epoch_of(member) == seat_of(club, who).number, (after, who)
