#!/usr/bin/env python3
"""How long others wait for a large request: its longest turn in the core, beside what a small commit takes.

One loop serves all groups of a coordinator, so a turn is what every other group waits. Turns are of the core
alone, in CPU time of its own: no socket, no log, no clock, no answer that is encoded. Each acknowledgement of
the log is a turn of its own, as each part of what is carried out some at a time.

    ./x bench turns [--share 1.0] [--repeat 3] [--only TEXT]
"""

import argparse
import gc
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kit.lives.virtual_shard import VirtualMember, VirtualShard
from muster_core.catalog import Catalog
from muster_core.config import GroupConfig
from muster_core.events import Effects, Event, GroupRequest, TopicsChanged
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

SMALL_COMMITS = 2_000
AT_ONCE = 10_000

CONFIG = GroupConfig(initial_rebalance_delay_ms=100, max_new_groups_per_shard=1 << 20)
AT_REST_MS = 500


class TimedShard(VirtualShard):
    """A shard that notes how many milliseconds of CPU time each turn takes."""

    def __init__(self) -> None:
        super().__init__(CONFIG)
        self.auto_ack = False
        self.turns_ms: list[float] = []
        self.member_ids: list[str] = []

    def _play(self, event: Event) -> Effects:
        began_s = time.process_time()
        effects = super()._play(event)
        self.turns_ms.append((time.process_time() - began_s) * 1_000)
        return effects

    def come_to_rest(self) -> None:
        """Lets all go on that waits for the log or has pauses; sessions and the like end later."""
        while self.waiting or (self.deadline_ms is not None and self.deadline_ms < self.now_ms + AT_REST_MS):
            if self.waiting:
                self.acknowledge()
            elif self.deadline_ms is not None:
                self.advance(max(0, self.deadline_ms - self.now_ms))


@dataclass(frozen=True)
class Large:
    """Something large that is asked.

    Attributes:
        what: how many of what, for people.
        count: how many.
        prepare: makes the state in which it is asked.
        ask: asks for it; called when turns are noted.
    """

    what: str
    count: int
    prepare: Callable[[TimedShard, int], None]
    ask: Callable[[TimedShard, int], None]

    def measure(self, share: float) -> tuple[float, float]:
        """Milliseconds: the longest turn, and all turns."""
        count = max(1, int(self.count * share))
        shard = TimedShard()
        self.prepare(shard, count)
        shard.come_to_rest()
        shard.turns_ms.clear()
        gc.collect()
        self.ask(shard, count)
        shard.come_to_rest()
        return max(shard.turns_ms), sum(shard.turns_ms)


def send(shard: TimedShard, message: GroupRequest) -> None:
    """Makes a call, whose answer must be without an error when the shard comes to rest."""
    call_id = shard.send(message)
    shard.come_to_rest()
    answer = shard.answer(call_id)
    assert not getattr(answer, "error_code", 0), answer


# --- what there is before


def nothing(_: TimedShard, __: int) -> None:
    """A new shard."""


def offsets_of_a_group(shard: TimedShard, count: int) -> None:
    """A group has offsets in so many partitions of a topic."""
    for first in range(0, count, AT_ONCE):
        send(shard, commit(("t", number) for number in range(first, min(first + AT_ONCE, count))))


def groups_in_a_topic(shard: TimedShard, count: int) -> None:
    """So many groups have an offset each in partition 0 of a topic."""
    shard.feed(catalog(5, {"t": 9, "other": 9}))
    for number in range(count):
        send(shard, commit([("t", 0)], f"group-{number}"))


def joining(shard: TimedShard, count: int) -> None:
    """Members of a classic group have their ids, and all but one have joined."""
    members = [VirtualMember(shard, f"m{number}") for number in range(count)]
    for member in members:
        member.join()
    shard.come_to_rest()
    shard.member_ids = [member.joined().member_id for member in members]


def joined(shard: TimedShard, count: int) -> None:
    """A classic group of so many members waits for the plan of its first one."""
    joining(shard, count)


def working(shard: TimedShard, count: int) -> None:
    """A classic group of so many members has a plan: a partition for each."""
    joined(shard, count)
    sync(shard, {member_id: [number] for number, member_id in enumerate(shard.member_ids)})


# --- what is asked


def commit(places: Iterable[tuple[str, int]], group: str = "g") -> coordinator_pb2.OffsetCommitRequest:
    """A commit of nobody in particular."""
    request = coordinator_pb2.OffsetCommitRequest(group_id=group, generation=-1)
    topic = request.topics.add()
    for name, number in places:
        if name != topic.name:
            topic = request.topics.add(name=name) if topic.name else topic
            topic.name = name
        topic.partitions.add(partition=number, offset=1)
    return request


def catalog(
    offset: int,
    partitions: dict[str, int],
    *,
    deleted: tuple[str, ...] = (),
    removed: dict[str, frozenset[int]] | None = None,
) -> TopicsChanged:
    """What a shard hears of the topics."""
    known = Catalog(
        offset,
        partitions,
        dict.fromkeys(deleted, offset),
        dict.fromkeys(partitions, 1),
        epoch=1,
        removed=removed or {},
    )
    return TopicsChanged(frozenset({*deleted, *known.removed}), catalog=known)


def sync(shard: TimedShard, shares: dict[str, Iterable[int]]) -> None:
    """The leader hands a plan in: numbers of partitions of one topic by member."""
    plan = []
    for member_id, numbers in shares.items():
        entries = [common_pb2.TopicPartitions(topic="t", partitions=numbers)]
        assignment = common_pb2.Assignment(version=1, partitions=entries).SerializeToString()
        plan.append(coordinator_pb2.SyncGroupRequest.Assignment(member_id=member_id, assignment=assignment))
    leader = next(iter(shares))
    send(
        shard,
        coordinator_pb2.SyncGroupRequest(group_id="g", member_id=leader, generation=1, assignments=plan),
    )


def commit_one_topic(shard: TimedShard, count: int) -> None:
    send(shard, commit(("t", number) for number in range(count)))


def commit_topics(shard: TimedShard, count: int) -> None:
    send(shard, commit((f"topic-{number}", 0) for number in range(count)))


def delete_offsets(shard: TimedShard, count: int) -> None:
    wanted = [common_pb2.TopicPartitions(topic="t", partitions=range(count))]
    send(shard, coordinator_pb2.OffsetDeleteRequest(group_id="g", topics=wanted))


def delete_group(shard: TimedShard, _: int) -> None:
    send(shard, coordinator_pb2.DeleteGroupsRequest(group_ids=["g"]))


def delete_topic(shard: TimedShard, _: int) -> None:
    shard.feed(catalog(6, {"other": 9}, deleted=("t",)))


def remove_partition(shard: TimedShard, _: int) -> None:
    shard.feed(catalog(6, {"t": 9, "other": 9}, removed={"t": frozenset({0})}))


def join(shard: TimedShard, count: int) -> None:
    """Nobody was there: all join and have their generation."""
    joining(shard, count)


def sync_members(shard: TimedShard, _: int) -> None:
    sync(shard, {member_id: [number] for number, member_id in enumerate(shard.member_ids)})


def sync_partitions(shard: TimedShard, count: int) -> None:
    """Ten members have equal shares."""
    share = count // len(shard.member_ids)
    firsts = range(0, count, share)
    sync(
        shard,
        {who: range(first, first + share) for who, first in zip(shard.member_ids, firsts, strict=False)},
    )


def leave(shard: TimedShard, _: int) -> None:
    leavers = [coordinator_pb2.LeaveGroupRequest.Member(member_id=who) for who in shard.member_ids]
    send(shard, coordinator_pb2.LeaveGroupRequest(group_id="g", members=leavers))


def ten_joined(shard: TimedShard, _: int) -> None:
    joined(shard, 10)


LARGE = (
    Large("OffsetCommit of {:,} partitions of a topic", 10_000, nothing, commit_one_topic),
    Large("OffsetCommit of {:,} topics", 10_000, nothing, commit_topics),
    Large("OffsetDelete of {:,} offsets", 100_000, offsets_of_a_group, delete_offsets),
    Large("DeleteGroups of a group with {:,} offsets", 100_000, offsets_of_a_group, delete_group),
    Large("a topic is deleted where {:,} groups have offsets", 20_000, groups_in_a_topic, delete_topic),
    Large(
        "a partition is removed where {:,} groups have offsets", 20_000, groups_in_a_topic, remove_partition
    ),
    Large("JoinGroup of {:,} members, and their generation", 5_000, nothing, join),
    Large("SyncGroup of the leader of {:,} members", 5_000, joined, sync_members),
    Large("SyncGroup with a plan of {:,} partitions", 100_000, ten_joined, sync_partitions),
    Large("LeaveGroup of {:,} members", 5_000, working, leave),
)


def small_commit_ms() -> float:
    """A commit of one partition and its acknowledgement, on the average."""
    shard = TimedShard()
    commits = [commit([("t", 0)]) for _ in range(SMALL_COMMITS)]
    for request in commits:
        send(shard, request)
    return sum(shard.turns_ms) / SMALL_COMMITS


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--share", type=float, default=1.0, help="of the numbers below; the default: 1.0")
    parser.add_argument("--repeat", type=int, default=3, help="runs; the best of each figure counts")
    parser.add_argument("--only", default="", help="what has this text in it")
    arguments = parser.parse_args()
    gc.collect()
    gc.disable()
    small_ms = min(small_commit_ms() for _ in range(arguments.repeat))
    print(f"a commit of one partition takes {small_ms * 1_000:.0f} µs of CPU time in the core")
    print(f"{'':60}{'longest turn':>13}{'all':>10}{'longest turn / small commit':>29}")
    for large in LARGE:
        what = large.what.format(max(1, int(large.count * arguments.share)))
        if arguments.only in what:
            runs = [large.measure(arguments.share) for _ in range(arguments.repeat)]
            longest_ms, all_ms = (min(figures) for figures in zip(*runs, strict=True))
            print(f"{what:60}{longest_ms:10.1f} ms{all_ms:7.0f} ms{longest_ms / small_ms:29,.0f}", flush=True)


if __name__ == "__main__":
    main()
