"""Members of the client on a real core, over a network that loses, doubles and reorders messages."""

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from kit.lives.incremental_shard import GROUP, incremental_of, incremental_shard
from muster._incremental import requests
from muster._incremental.membership import Asked, Membership, Move, Phase, Way
from muster._incremental.requests import Identity
from muster._standing.life import Life
from muster._values import TopicPartition
from muster_core.config import GroupConfig
from muster_protos.muster.v1 import common_pb2
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

SESSION_MS, INTERVAL_MS, REBALANCE_MS = 6_000, 1_000, 20_000
CALL_TIMEOUT_MS = 1_500
CONFIG = GroupConfig(incremental_session_timeout_ms=SESSION_MS, incremental_heartbeat_interval_ms=INTERVAL_MS)


class Worker:
    """A process with one member, as the client carries it out.

    Attributes:
        state: its member.
        asleep: it is stopped, and does nothing until it wakes.
        hangs: it does not give back in time.
        stopped: work that it was asked to end at some time, with that time; None: nothing.
    """

    def __init__(self, name: str, instance: str = "") -> None:
        life = Life(SESSION_MS)
        life.on_stream = False
        identity = Identity(GROUP, name, ("t",), REBALANCE_MS, instance)
        self.name = name
        self.process_id = name.encode().ljust(requests.PROCESS_ID_BYTES, b".")
        self.state = Membership(identity, life, patience_ms=4 * SESSION_MS)
        self.asleep = self.hangs = False
        self.calling: tuple[Asked, int] | None = None
        self.due_ms = 0
        self.ending: tuple[Move, int] | None = None

    def ask(self, now_ms: int) -> Asked:
        """Sends what is due; its process id is its own, though all workers are in one process."""
        asked = self.state.ask(now_ms)
        if asked.joins:
            self.state._process_id = asked.request.process_id = self.process_id
        return asked

    def work(self, now_ms: int, takes_ms: int) -> None:
        """Does all that is to be done with the work now; what is to be given back takes a time."""
        while (move := self.state.next_move(now_ms)) is not None:
            if move.way is Way.GIVE_BACK:
                if self.ending is None or self.ending[0].partitions != move.partitions:
                    self.ending = move, now_ms + takes_ms
                if self.hangs or now_ms < self.ending[1]:
                    return
            self.ending = None
            if move.way is Way.BEGIN:
                self.state.begun(move.partitions)
            else:
                self.state.ended(move.partitions, still_run=move.still_run)
                self.due_ms = now_ms  # as the client does: whoever waits for it hears of it at once


@dataclass(frozen=True)
class Letter:
    """A request on its way to the coordinator, or an answer on its way back."""

    worker: Worker
    asked: Asked | None
    request: ConsumerGroupHeartbeatRequest
    answer: ConsumerGroupHeartbeatResponse | None = None


class Fleet:
    """One history of a group."""

    def __init__(self, seed: int, partitions: int = 5) -> None:
        self.draw = random.Random(seed)
        self.partitions = partitions
        self.cluster = incremental_shard(partitions, config=CONFIG)
        self.workers: list[Worker] = []
        self.letters: list[Letter] = []
        self.begun = 0
        self.wild = True
        self._ahead_ms = 0

    @property
    def now_ms(self) -> int:
        """The workers' time; each coordinator has a clock of its own."""
        return self.cluster.now_ms + self._ahead_ms

    def add(self, instance: str = "") -> None:
        self.begun += 1
        self.workers.append(Worker(f"w{self.begun}", instance))

    # --- time

    def advance(self, ms: int) -> None:
        """Lets time pass; every member stops at its own deadline, if it does not sleep."""
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            limits = [w.state.life.ends_at_ms for w in self.workers if not w.asleep]
            next_ms = min([end_ms, *(limit for limit in limits if limit > self.now_ms)])
            self.cluster.advance(next_ms - self.now_ms)
            self.act()

    def act(self) -> None:
        """Every worker that is awake works, and asks what is due."""
        for worker in self.workers:
            if not worker.asleep:
                worker.work(self.now_ms, self.draw.choice((0, 0, 50, 900)) if self.wild else 0)
                self._call(worker)
        self.check()

    def _call(self, worker: Worker) -> None:
        now_ms, state = self.now_ms, worker.state
        if worker.calling is not None and now_ms >= worker.calling[1]:
            worker.calling = None
        if worker.calling is not None or not state.may_ask() or now_ms < worker.due_ms:
            return
        asked = worker.ask(now_ms)
        worker.calling = asked, now_ms + CALL_TIMEOUT_MS
        worker.due_ms = now_ms + INTERVAL_MS
        self.letters.append(Letter(worker, asked, asked.request))

    # --- the network

    def deliver(self) -> None:
        """One letter arrives, any of them; or it is lost, or arrives and stays on its way as well."""
        if not self.letters:
            return
        index = self.draw.randrange(len(self.letters)) if self.wild else 0
        letter = self.letters.pop(index)
        fate = self.draw.random() if self.wild else 1.0
        if letter.answer is not None and letter.worker not in self.workers:
            return
        if letter.worker.asleep and letter.answer is not None:
            self.letters.append(letter)
            return
        if fate < 0.1:
            return
        if fate < 0.2:
            self.letters.append(letter)
        if letter.answer is None:
            answer = self.cluster.ask(letter.request)
            assert isinstance(answer, ConsumerGroupHeartbeatResponse)
            if letter.asked is not None:
                self.letters.append(Letter(letter.worker, letter.asked, letter.request, answer))
        elif letter.asked is not None:
            worker = letter.worker
            worker.state.hear(letter.asked, letter.answer, self.now_ms)
            if worker.calling is not None and worker.calling[0] is letter.asked:
                worker.calling = None
        self.act()

    # --- what happens

    def step(self) -> None:
        """Something happens."""
        what = self.draw.random()
        if what < 0.55:
            self.deliver()
        elif what < 0.85:
            self.advance(self.draw.choice((1, 30, 300, 1_000)))
        elif len(self.workers) < 2 or (what < 0.88 and len(self.workers) < 4):
            self.add(self.draw.choice(("", "", "i")))
        elif self.workers:
            getattr(self, self.draw.choice(("_crash", "_leave", "_fall_asleep", "_wake", "_move", "_hang")))()
        self.act()

    def _one(self) -> Worker:
        return self.draw.choice(self.workers)

    def _crash(self) -> None:
        if self.draw.random() < 0.3:
            self.workers.remove(self._one())

    def _leave(self) -> None:
        worker = self._one()
        if self.draw.random() < 0.3 and not worker.asleep:
            worker.state.ended(tuple(worker.state.runs))
            request = worker.state.leave(for_a_while=bool(worker.state.identity.group_instance_id))
            self.workers.remove(worker)
            if request is not None:
                self.letters.append(Letter(worker, None, request))

    def _fall_asleep(self) -> None:
        if self.draw.random() < 0.3:
            self._one().asleep = True

    def _wake(self) -> None:
        for worker in self.workers:
            worker.asleep = False

    def _hang(self) -> None:
        if self.draw.random() < 0.1:
            worker = self._one()
            worker.hangs = not worker.hangs

    def _move(self) -> None:
        """Another coordinator loads the log."""
        now_ms = self.now_ms
        self.cluster = incremental_shard(self.partitions, records=self.cluster.log, config=CONFIG)
        self._ahead_ms = now_ms - self.cluster.now_ms
        for worker in self.workers:
            worker.state.resume()

    def settle(self, rounds: int = 60) -> None:
        """Everybody is awake, and nothing is lost any more."""
        self.wild = False
        self._wake()
        for worker in self.workers:
            worker.hangs = False
        for _ in range(rounds):
            self.advance(INTERVAL_MS)
            while self.letters:
                self.deliver()

    # --- what must hold

    def check(self) -> None:
        """Nobody works on what another one works on, but who was removed for not giving back in time."""
        running = defaultdict[TopicPartition, list[Worker]](list)
        for worker in self.workers:
            if not worker.asleep:
                for partition, token in worker.state.runs.items():
                    running[partition].append(worker)
                    self._check_owner(worker, partition, token)
        for partition, some in running.items():
            owners = [worker for worker in some if not self._was_put_out(worker)]
            assert len(owners) < 2, f"{partition} is worked on by {[w.name for w in owners]}"

    def _check_owner(self, worker: Worker, partition: TopicPartition, token: str) -> None:
        member = incremental_of(self.cluster).members.get(worker.name) if self._has_group else None
        if member is None or member.told.member_seq != worker.state.seq or worker.state.phase is not Phase.IN:
            assert self._was_put_out(worker), f"{worker.name} works on {partition} and is no member"
            return
        held = member.held.get((partition.topic, partition.number))
        assert held is not None, f"{worker.name} works on {partition}, which it does not have"
        assert held.token.token == token, f"{worker.name} works on {partition} with another token"

    @property
    def _has_group(self) -> bool:
        group = self.cluster.shard.groups.get(GROUP)
        return group is not None and group.incremental is not None

    def _was_put_out(self, worker: Worker) -> bool:
        """Whether the log says that it was too late, or another process has its place."""
        return any(self._puts_out(worker))

    def _puts_out(self, worker: Worker) -> Iterator[bool]:
        for _, record in reversed(self.cluster.log):
            removed, joined = record.member_removed, record.member_subscribed
            if record.HasField("member_removed") and removed.member_id == worker.name:
                yield removed.cause.kind == common_pb2.REBALANCE_CAUSE_KIND_REBALANCE_TIMEOUT
                return
            if (
                record.HasField("member_subscribed")
                and joined.joined
                and joined.member.member_id == worker.name
            ):
                return
            if record.HasField("instance_moved") and record.instance_moved.old_member_id == worker.name:
                yield True
                return
