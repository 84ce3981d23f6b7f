"""The core and the model of incremental groups, side by side on the same random histories.

Members make unary calls that name their join and what they have heard. Each has a static id of its own, so
that it can leave for a while. A further member, the observer, sends a heartbeat after each step, which
computes the target that is due; what the core's assignor drew becomes the model's target.
"""

import random
from collections.abc import Mapping
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from kit.lives.incremental_shard import AWAY, LEAVE, NumberedMember, incremental_of, incremental_shard
from model.incremental.coordinator import Coordinator
from model.incremental.group import GroupModel
from model.incremental.rules import Rules
from model.incremental.state import Bounds, Message
from muster_core.incremental.member import Member
from muster_core.incremental.partitions import TopicPartition
from muster_core.incremental.target import Question
from muster_core.position import NOWHERE, Position
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatRequest

PROCESSES, PARTITIONS = 3, 4
OBSERVER = PROCESSES
BOUNDS = Bounds(
    processes=PROCESSES + 1, partitions=PARTITIONS, members=0, unary=tuple(range(PROCESSES + 1)), lives=1_000
)
STEPS = ("join", "again", "earlier", "beat", "part", "quiet", "late", "lost", "leave", "away")

Heard = tuple[Position, int, frozenset[int]]
"""What a process has heard: the core's version, the model's, and its list."""

NOTHING: Heard = (NOWHERE, 0, frozenset())


class SideBySide:
    """One history, played by both."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn: tuple[int, ...] | None = None
        self._count = 0
        self.cluster = incremental_shard(PARTITIONS, assignors={"drawn": self._assign})
        self._coordinator = Coordinator(Rules(), BOUNDS)
        self._state = GroupModel(Rules(), BOUNDS).initial()
        self.members = [
            NumberedMember(self.cluster, str(who), instance=f"i{who}") for who in range(PROCESSES + 1)
        ]
        self._heard = [NOTHING] * (PROCESSES + 1)
        self._before = [NOTHING] * (PROCESSES + 1)
        self.play(OBSERVER, "join")

    def _assign(self, question: Question) -> Mapping[str, list[TopicPartition]]:
        self._count += 1
        draw = random.Random(self._seed * 1_000 + self._count)
        living = sorted(question.candidates)
        self._drawn = tuple(int(draw.choice(living)) for _ in range(PARTITIONS))
        target: dict[str, list[TopicPartition]] = {}
        for number, who in enumerate(self._drawn):
            target.setdefault(str(who), []).append(("t", number))
        return target

    def _forget_draw(self) -> None:
        self._drawn = None

    def play(self, who: int, step: str) -> None:
        """A step of a process, then a heartbeat of the observer; both must come to the same group."""
        getattr(self, "_" + step)(who)
        self._compare(f"{step} of {who}")
        if self._core(OBSERVER) is not None:
            self._send(OBSERVER, self._heard[OBSERVER], self._heard[OBSERVER][2])
            self._compare(f"the observer after {step} of {who}")

    # --- steps

    def _join(self, who: int) -> None:
        self.members[who].seq += 1
        self._enter(who)

    def _again(self, who: int) -> None:
        if self.members[who].seq:
            self._enter(who)

    def _earlier(self, who: int) -> None:
        member = self.members[who]
        if member.seq > 1:
            member.seq -= 1
            self._enter(who)
            member.seq += 1

    def _beat(self, who: int) -> None:
        self._send(who, self._heard[who], self._heard[who][2])

    def _part(self, who: int) -> None:
        """It has not stopped the first of what was taken; of what it has it names no second."""
        held = self._core(who)
        pending = sorted(number for _, number in held.pending) if held is not None else []
        owned = self._heard[who][2] | set(pending[:1])
        self._send(who, self._heard[who], owned - set(sorted(owned)[1:2]))

    def _quiet(self, who: int) -> None:
        self._send(who, self._heard[who], None)

    def _late(self, who: int) -> None:
        """A list that was sent before the last answer was heard."""
        self._send(who, self._before[who], self._before[who][2])

    def _lost(self, who: int) -> None:
        """Its answer is lost."""
        heard = self._heard[who]
        self._send(who, heard, heard[2])
        self._heard[who] = heard

    def _leave(self, who: int, epoch: int = LEAVE) -> None:
        self.members[who].leave(epoch)
        kind = "leave" if epoch == LEAVE else "away"
        self._model(who, kind)

    def _away(self, who: int) -> None:
        held = self._core(who)
        if held is not None and not held.is_away:
            self._leave(who, AWAY)

    # --- both

    def _enter(self, who: int) -> None:
        member = self.members[who]
        present = self._core(who)
        self._forget_draw()
        answer = member.ask(_join_of(member))
        if present is not None and present.is_away and member.seq == present.told.member_seq:
            assert answer.error_code  # the model answers such a copy; neither changes anything
            return
        self._model(who, "join")
        if self._drawn is not None:
            self._take_target(who)
        if not answer.error_code:
            member.epoch = answer.member_epoch
            self._hear(who)

    def _send(self, who: int, heard: Heard, owned: frozenset[int] | set[int] | None) -> None:
        member = self.members[who]
        self._forget_draw()
        member.epoch = max(member.epoch, 1)
        member.version = heard[0]
        answer = member.beat(None if owned is None else {("t", number) for number in owned})
        if self._drawn is not None:
            self._take_target(None)
        said = () if owned is None else tuple(int(number in owned) for number in range(PARTITIONS))
        kind = self._model(who, "beat", heard[1], said)
        assert bool(answer.error_code) is (kind == "fenced"), (answer, kind)
        if not answer.error_code:
            self._hear(who)

    def _model(self, who: int, kind: str, version: int = 0, owned: tuple[int, ...] = ()) -> str:
        message = Message(kind, who, self.members[who].seq, version=version, owned=owned)
        self._state, answer = self._coordinator.handle(self._state, message)
        return "" if answer is None else answer.kind

    def _take_target(self, asked_by: int | None) -> None:
        assert self._drawn is not None
        batch = self._coordinator.batch(self._state)
        batch.add("target", batch.epoch, self._drawn)
        for who, member in enumerate(self._state.group.members):
            if member is not None and member.away:
                batch.reconcile(who)
        self._state = self._coordinator.write(self._state, batch, asked_by)

    def _hear(self, who: int) -> None:
        core, model = self._core(who), self._state.group.members[who]
        assert core is not None
        assert model is not None
        self._before[who] = self._heard[who]
        self._heard[who] = (core.version, model.version, frozenset(number for _, number in core.assigned))

    # --- what must be equal

    def _core(self, who: int) -> Member | None:
        group = self.cluster.shard.groups.get("g")
        incremental = None if group is None else group.incremental
        return None if incremental is None else incremental.members.get(str(who))

    def _compare(self, after: str) -> None:
        group = incremental_of(self.cluster)
        assert (group.epoch, group.target_epoch) == (
            self._state.group.epoch,
            self._state.group.target_epoch,
        ), after
        for who, model in enumerate(self._state.group.members):
            core = self._core(who)
            assert (core is None) is (model is None), (after, who)
            if core is None or model is None:
                continue
            assert core.told.member_seq == model.join, (after, who)
            assert core.is_away is model.away, (after, who)
            held = {number for number, token in enumerate(model.held) if token}
            taken = {number for number, place in enumerate(model.taken) if place}
            assert {number for _, number in core.held} == held, (after, who)
            assert {number for _, number in core.pending} == taken, (after, who)
            if not core.is_away and not taken:
                assert core.epoch == model.epoch, (after, who)
        self._compare_tokens(after)

    def _compare_tokens(self, after: str) -> None:
        """Tokens of both were given in the same order, as far as different records gave them."""
        pairs = sorted(
            (core.held["t", number].token, token)
            for who, model in enumerate(self._state.group.members)
            if model is not None and (core := self._core(who)) is not None
            for number, token in enumerate(model.held)
            if token
        )
        for (first, earlier), (second, later) in pairwise(pairs):
            assert first == second or earlier < later, after


def _join_of(member: NumberedMember) -> ConsumerGroupHeartbeatRequest:
    request = member.request(0)
    request.ClearField("version")
    request.topics.names.append("t")
    request.rebalance_timeout_ms = 30_000
    request.owned.SetInParent()
    return request


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 1 << 16),
    st.lists(st.tuples(st.integers(0, PROCESSES - 1), st.sampled_from(STEPS)), min_size=5, max_size=60),
)
def test_core_and_model_come_to_the_same_group(seed: int, steps: list[tuple[int, str]]) -> None:
    both = SideBySide(seed)
    for who in range(PROCESSES):
        both.play(who, "join")
    for who, step in steps:
        both.play(who, step)
