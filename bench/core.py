#!/usr/bin/env python3
"""What the core costs, in CPU time of its own: no socket, no log, no clock.

For groups of 10, 100, 1,000 and 10,000 members: the join phase of everybody (each member's JoinGroup, the
record of the generation, everybody's answer), the same for SyncGroup, a heartbeat, a beat of a stream that
carries 100 members, a commit. Calls are made before the clock is started. Appends are acknowledged in order.

    ./x bench core [--sizes 10,100,1000,10000] [--repeat 5] [--check]

With `--check` it fails when a bar is missed: one heartbeat event 5 µs, a beat 1 µs for each of its 100
members, a join phase of 10,000 members 0.25 s.
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from muster_core.clock import Now
from muster_core.config import GroupConfig
from muster_core.events import (
    AppendDone,
    Attach,
    Beat,
    Effects,
    Event,
    GroupRequest,
    GroupResponse,
    Request,
    Tick,
)
from muster_core.features import ALL_FEATURES
from muster_core.position import Position
from muster_core.shard import Shard
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, session_pb2

HEARTBEAT_BAR_US = 5.0
BEAT_BAR_US = 1.0
JOIN_BAR_S = 0.25
JOIN_BAR_MEMBERS = 10_000
ON_STREAM = 100
EVENTS = 20_000
TOPIC = "events"
METADATA = common_pb2.Subscription(version=1, topics=[TOPIC], rack_id="rack-1").SerializeToString()
DELAY_MS = 1_000


@dataclass(frozen=True)
class Costs:
    """Seconds, of one group size."""

    members: int
    join_s: float
    sync_s: float
    heartbeat_s: float
    beat_s: float
    commit_s: float


class Driver:
    """Carries out the effects of a shard, in virtual time."""

    def __init__(self) -> None:
        self.shard = Shard(
            0, GroupConfig(max_size=1 << 20, initial_rebalance_delay_ms=DELAY_MS, max_pending_members=1 << 20)
        )
        self.now_ms = 1_000
        self.offset = 2
        self.calls = 0
        self.answers: dict[int, GroupResponse] = {}
        self.carry_out(self.shard.loaded(1, self.now, ALL_FEATURES))

    @property
    def now(self) -> Now:
        return Now(self.now_ms, self.now_ms)

    def carry_out(self, effects: Effects) -> float:
        """Takes the answers, acknowledges the appends; returns the CPU seconds of what follows from that."""
        spent = 0.0
        for reply in effects.replies:
            self.answers[reply.call_id] = reply.message
        for append in effects.appends:
            position = Position(1, self.offset + 1)
            self.offset += len(append.records)
            spent += self.play([AppendDone(append.append_id, position)])
        return spent

    def request(self, message: GroupRequest) -> Request:
        self.calls += 1
        return Request(self.calls, message, "10.0.0.1", f"draw-{self.calls}")

    def play(self, events: Sequence[Event]) -> float:
        """CPU seconds that the core takes for events, and for the acknowledgements that follow."""
        handle, now = self.shard.handle, self.now
        outcomes = []
        before = time.process_time()
        for event in events:
            effects = handle(event, now)
            if effects.replies or effects.appends:
                outcomes.append(effects)
        spent = time.process_time() - before
        return spent + sum([self.carry_out(effects) for effects in outcomes])

    def ask(self, message: GroupRequest) -> GroupResponse:
        call = self.request(message)
        self.play([call])
        return self.answers.pop(call.call_id)


def join_of(number: int, member_id: str) -> coordinator_pb2.JoinGroupRequest:
    return coordinator_pb2.JoinGroupRequest(
        group_id="g",
        member_id=member_id,
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
        protocol_type="consumer",
        protocols=[
            coordinator_pb2.GroupProtocol(name="cooperative-sticky", metadata=METADATA),
            coordinator_pb2.GroupProtocol(name="range"),
        ],
        client_id=f"client-{number}",
        member_seq=1,
    )


def assignment_of(number: int) -> bytes:
    partitions = [common_pb2.TopicPartitions(topic=TOPIC, partitions=[number])]
    return common_pb2.Assignment(version=1, partitions=partitions).SerializeToString()


def measure(members: int) -> Costs:
    """The costs of one group size."""
    gc.collect()
    gc.disable()
    driver = Driver()
    ids = []
    for number in range(members):
        told = driver.ask(join_of(number, ""))
        assert isinstance(told, coordinator_pb2.JoinGroupResponse)
        ids.append(told.member_id)
    joins = [driver.request(join_of(number, member_id)) for number, member_id in enumerate(ids)]
    join_s = driver.play(joins)
    while joins[0].call_id not in driver.answers:
        driver.now_ms += DELAY_MS
        join_s += driver.play([Tick()])
    answers = [driver.answers.pop(call.call_id) for call in joins]
    assert all(
        isinstance(answer, coordinator_pb2.JoinGroupResponse) and not answer.error_code for answer in answers
    )

    plan = [
        coordinator_pb2.SyncGroupRequest.Assignment(member_id=member_id, assignment=assignment_of(number))
        for number, member_id in enumerate(ids)
    ]
    syncs = [
        driver.request(
            coordinator_pb2.SyncGroupRequest(
                group_id="g", member_id=member_id, generation=1, assignments=plan if number == 0 else ()
            )
        )
        for number, member_id in reversed(list(enumerate(ids)))
    ]
    sync_s = driver.play(syncs)
    assert all(call.call_id in driver.answers for call in syncs)

    def each(make: Callable[[str], GroupRequest]) -> float:
        events = [driver.request(make(ids[number % members])) for number in range(EVENTS)]
        return driver.play(events) / EVENTS

    heartbeat_s = each(
        lambda who: coordinator_pb2.HeartbeatRequest(group_id="g", member_id=who, generation=1)
    )
    on_stream = ids[:ON_STREAM]
    driver.play(
        [
            Attach(1, session_pb2.Attach(group_id="g", member_id=member_id, generation=1))
            for member_id in on_stream
        ]
    )
    beats = max(1, EVENTS // 10)
    beat_s = driver.play([Beat(1)] * beats) / beats / len(on_stream)
    commit_s = each(commit_of)
    gc.enable()
    return Costs(members, join_s, sync_s, heartbeat_s, beat_s, commit_s)


def commit_of(member_id: str) -> coordinator_pb2.OffsetCommitRequest:
    commit = coordinator_pb2.OffsetCommitRequest(group_id="g", member_id=member_id, generation=1)
    commit.topics.add(name="t").partitions.add(partition=0, offset=1)
    return commit


def best(costs: Sequence[Costs]) -> Costs:
    """The lowest of each figure: other programs on the machine only ever add."""
    return Costs(
        costs[0].members,
        *(
            min(getattr(cost, field) for cost in costs)
            for field in ("join_s", "sync_s", "heartbeat_s", "beat_s", "commit_s")
        ),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", default="10,100,1000,10000", help="members, with commas between")
    parser.add_argument("--repeat", type=int, default=5, help="runs; the best of each figure counts")
    parser.add_argument("--check", action="store_true", help="fail when a bar is missed")
    arguments = parser.parse_args()
    print("CPU time of the core; Python", sys.version.split()[0])
    print(
        f"{'members':>8}{'join phase':>13}{'per member':>12}{'syncs':>11}{'per member':>12}"
        f"{'heartbeat':>12}{'per second':>12}{'beat/member':>13}{'commit':>10}"
    )
    missed = []
    for size in map(int, arguments.sizes.split(",")):
        cost = best([measure(size) for _ in range(arguments.repeat)])
        print(
            f"{size:>8,}{cost.join_s * 1e3:>10.1f} ms{cost.join_s / size * 1e6:>9.1f} µs"
            f"{cost.sync_s * 1e3:>8.1f} ms{cost.sync_s / size * 1e6:>9.1f} µs"
            f"{cost.heartbeat_s * 1e6:>9.2f} µs{1 / cost.heartbeat_s:>12,.0f}"
            f"{cost.beat_s * 1e6:>10.3f} µs{cost.commit_s * 1e6:>7.1f} µs"
        )
        if cost.heartbeat_s * 1e6 > HEARTBEAT_BAR_US:
            missed.append(f"{size} members: a heartbeat takes {cost.heartbeat_s * 1e6:.2f} µs")
        if size >= ON_STREAM and cost.beat_s * 1e6 > BEAT_BAR_US:
            missed.append(f"{size} members: a beat takes {cost.beat_s * 1e6:.2f} µs a member")
        if size <= JOIN_BAR_MEMBERS and cost.join_s > JOIN_BAR_S:
            missed.append(f"{size} members: a join phase takes {cost.join_s:.3f} s")
    for line in missed:
        print(f"over the bar: {line}")
    return 1 if missed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
