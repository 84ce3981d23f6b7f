"""The core and the model of incremental groups, side by side on the same random histories.

Members name their join and what they have heard. Some are on a session stream, which they share and which
breaks; the others make unary calls, and so do those on streams now and then. Each has a static id of its own,
so that it can leave for a while. A further member, the observer, sends a heartbeat after each step, which
computes the target that is due; what the core's assignor drew becomes the model's target.
"""

import random
from collections.abc import Mapping
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.lives.incremental_shard import AWAY, LEAVE, NumberedMember, incremental_of, incremental_shard
from kit.lives.stream_member import StreamMember
from kit.logs.core_audit import broken_promises
from model.incremental.coordinator import Coordinator
from model.incremental.group import GroupModel
from model.incremental.rules import Rules
from model.incremental.state import Bounds, Message
from muster_core.incremental.member import Member
from muster_core.incremental.partitions import TopicPartition
from muster_core.incremental.targets.target import Question
from muster_core.position import NOWHERE, Position
from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatRequest

PROCESSES, PARTITIONS = 3, 4
OBSERVER = PROCESSES
STEPS = ("join", "again", "earlier", "beat", "part", "quiet", "late", "lost", "leave", "away")
STREAM_STEPS = (*STEPS, "listen", "aside", "break")
"""Those on a stream hear news, make a call beside it, and lose it; the others just send a heartbeat then."""

Heard = tuple[Position, int, frozenset[int]]
"""What a process has heard: the core's version, the model's, and its list."""

NOTHING: Heard = (NOWHERE, 0, frozenset())


class SideBySide:
    """One history, played by both.

    Args:
        seed: of the targets.
        streams: processes whose members are on a stream.
    """

    def __init__(self, seed: int, streams: frozenset[int]) -> None:
        self._seed = seed
        self._drawn: tuple[int, ...] | None = None
        self._count = 0
        self.cluster = incremental_shard(PARTITIONS, assignors={"drawn": self._assign})
        unary = tuple(who for who in range(PROCESSES + 1) if who not in streams)
        bounds = Bounds(processes=PROCESSES + 1, partitions=PARTITIONS, members=0, unary=unary, lives=1_000)
        self._coordinator = Coordinator(Rules(), bounds)
        self._state = GroupModel(Rules(), bounds).initial()
        self._streams = streams
        self._stream_id = 1
        self._tokens: dict[tuple[int, int], tuple[Position, int]] = {}
        self.members = [
            (StreamMember if who in streams else NumberedMember)(self.cluster, str(who), instance=f"i{who}")
            for who in range(PROCESSES + 1)
        ]
        self._connect()
        self._heard = [NOTHING] * (PROCESSES + 1)
        self._before = [NOTHING] * (PROCESSES + 1)
        self.play(OBSERVER, "join")

    def _assign(self, question: Question) -> Mapping[str, list[TopicPartition]]:
        self._count += 1
        draw = random.Random(self._seed * 1_000 + self._count)
        living = sorted(question.candidates)
        had = {number: one.member_id for one in question.candidates.values() for _, number in one.before}
        drawn = [draw.choice(living) for _ in range(PARTITIONS)]
        kept = [had.get(number, one) if draw.random() < 0.6 else one for number, one in enumerate(drawn)]
        self._drawn = tuple(map(int, kept))
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

    # --- streams

    def _connect(self) -> None:
        """Whoever is on streams shares one from its next call on."""
        self._stream_id += 1
        for member in self.members:
            if isinstance(member, StreamMember):
                member.connect(self._stream_id)

    def _break(self, who: int) -> None:
        member = self.members[who]
        if isinstance(member, StreamMember):
            member.lose_stream()
            self._connect()

    def _listen(self, who: int) -> None:
        """It hears what it was pushed: all that the core has for it, if it is on the stream."""
        if who in self._streams and self._core(who) is not None:
            self._hear(who)

    def _aside(self, who: int) -> None:
        """A heartbeat without its stream: it is a stream member still."""
        member = self.members[who]
        if isinstance(member, StreamMember):
            vars(member)["ask"] = partial(NumberedMember.ask, member)
        self._beat(who)
        if isinstance(member, StreamMember):
            del member.ask

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
        self._forget_draw()
        self.members[who].leave(epoch)
        self._coordinator.halved = self._drawn is not None
        self._model(who, "leave" if epoch == LEAVE else "away")
        self._take_target(None)

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
        self._coordinator.halved = self._drawn is not None
        self._model(who, "join")
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
        self._take_target(None, halved=True)
        said = () if owned is None else tuple(int(number in owned) for number in range(PARTITIONS))
        kind = self._model(who, "beat", heard[1], said)
        assert bool(answer.error_code) is (kind == "fenced"), (answer, kind)
        if not answer.error_code:
            self._hear(who)

    def _model(self, who: int, kind: str, version: int = 0, owned: tuple[int, ...] = ()) -> str:
        message = Message(kind, who, self.members[who].seq, version=version, owned=owned)
        self._state, answer = self._coordinator.handle(self._state, message)
        return "" if answer is None else answer.kind

    def _take_target(self, asked_by: int | None, *, halved: bool = False) -> None:
        """The target that the core has drawn, if it has; halved: what follows from it is not done yet."""
        if self._drawn is None:
            return
        self._coordinator.halved = halved
        batch = self._coordinator.batch(self._state)
        batch.add("target", batch.epoch, self._drawn)
        for who, member in enumerate(self._state.group.members):
            if member is not None and member.away:
                batch.reconcile(who)
        self._state = self._coordinator.write(self._state, batch, asked_by)
        self._coordinator.halved = False

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
            if not core.is_away and (who in self._streams or not taken):
                assert group.epoch_of(core) == model.epoch, (after, who)
        self._compare_tokens(after)
        self._compare_news(after)

    def _compare_tokens(self, after: str) -> None:
        """Tokens of both change together, and grow."""
        before, self._tokens = self._tokens, {}
        for who, model in enumerate(self._state.group.members):
            core = self._core(who)
            for number, token in enumerate(model.held if model is not None else ()):
                if not token or core is None:
                    continue
                now = self._tokens[who, number] = core.held["t", number].token, token
                had = before.get((who, number), now)
                assert (now == had) or (now[0] > had[0] and now[1] > had[1]), (after, who, number)

    def _compare_news(self, after: str) -> None:
        """Who is on the stream was told all that there is for it, and nothing that is not so."""
        for who in self._streams:
            member, core = self.members[who], self._core(who)
            assert isinstance(member, StreamMember)
            news = member.listen()
            if core is not None and news:
                assert (member.version, member.has) == (core.version, core.assigned), after


def _join_of(member: NumberedMember) -> ConsumerGroupHeartbeatRequest:
    request = member.request(0)
    request.ClearField("version")
    request.topics.names.append("t")
    request.rebalance_timeout_ms = 30_000
    request.owned.SetInParent()
    return request


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 1 << 16),
    st.frozensets(st.integers(0, PROCESSES - 1)),
    st.lists(
        st.tuples(st.integers(0, PROCESSES - 1), st.sampled_from(STREAM_STEPS)), min_size=5, max_size=60
    ),
)
def test_core_and_model_come_to_the_same_group(
    seed: int, streams: frozenset[int], steps: list[tuple[int, str]]
) -> None:
    both = SideBySide(seed, streams)
    for who in range(PROCESSES):
        both.play(who, "join")
    for who, step in steps:
        both.play(who, step)
    assert broken_promises(both.cluster) == []
