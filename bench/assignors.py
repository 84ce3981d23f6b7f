#!/usr/bin/env python3
"""What assignors cost, and how many partitions they move, beside the fewest that had to.

CPU time of one core for a million partitions of ten topics and 2,000 members, whose subscriptions are
equal or differ: at the start, and when one more member joins. The baseline is a pass of the same run: each
partition is put into the list of a member in turn. Then the partitions that move when one worker joins 5, 29
or 99 others.

    ./x bench assignors [--partitions 1000000] [--members 2000] [--check]

With `--check` it fails when a bar is missed: 4 s with equal subscriptions, 30 s with others.
"""

import argparse
import gc
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from muster_assignors import (
    KAFKA,
    Assignment,
    Assignor,
    GroupSnapshot,
    MemberSnapshot,
    TopicPartition,
    TopicSnapshot,
    check_assignment,
)

TOPICS = 10
EQUAL_BAR_S, UNEQUAL_BAR_S = 4.0, 30.0
FLEETS = ((12, 6), (120, 30), (1_000, 100))
"""Partitions, and workers after one more has joined."""

Topics = Mapping[str, TopicSnapshot]
Wants = Callable[[int], tuple[str, ...]]


def group(topics: Topics, members: int, wants: Wants, had: Assignment) -> GroupSnapshot:
    """Members that had something in the generation before, or nothing."""
    names = [f"worker-{number:05}" for number in range(members)]
    return GroupSnapshot(
        {
            name: MemberSnapshot(
                name, wants(number), owned=tuple(had.get(name, ())), keeps_owned=True, generation=1
            )
            for number, name in enumerate(names)
        },
        topics,
    )


def timed(assignor: Assignor, snapshot: GroupSnapshot) -> tuple[float, Assignment]:
    """CPU seconds of an assignment, which is checked afterwards."""
    gc.collect()
    before = time.process_time()
    assigned = assignor.assign(snapshot)
    spent = time.process_time() - before
    check_assignment(assignor, snapshot, assigned)
    return spent, assigned


def baseline_s(topics: Topics, members: int) -> float:
    """CPU seconds to put each partition into the list of a member in turn."""
    gc.collect()
    before = time.process_time()
    lists: list[list[TopicPartition]] = [[] for _ in range(members)]
    place = 0
    for name, topic in topics.items():
        for number in range(topic.partitions):
            lists[place].append(TopicPartition(name, number))
            place = (place + 1) % members
    return time.process_time() - before


def cost(partitions: int, members: int) -> Sequence[str]:
    """Prints the table of times; returns the bars that were missed."""
    topics = {f"topic-{number}": TopicSnapshot(partitions // TOPICS) for number in range(TOPICS)}
    names = tuple(topics)
    draw = random.Random(1)
    some = [tuple(sorted(draw.sample(names, draw.randint(1, TOPICS)))) for _ in range(members + 1)]
    base_s = baseline_s(topics, members)
    print(f"{partitions:,} partitions, {members:,} members; a pass over them: {base_s:.2f} s")
    print(
        f"{'subscriptions':<14} {'assignor':<20} {'start s':>8} {'ratio':>6} {'one more s':>11} {'ratio':>6}"
    )
    missed = []
    cases: tuple[tuple[str, Wants, float], ...] = (
        ("equal", lambda _: names, EQUAL_BAR_S),
        ("different", some.__getitem__, UNEQUAL_BAR_S),
    )
    for label, wants, bar_s in cases:
        for name, assignor in KAFKA.items():
            start_s, had = timed(assignor, group(topics, members, wants, {}))
            more_s, _ = timed(assignor, group(topics, members + 1, wants, had))
            print(
                f"{label:<14} {name:<20} {start_s:>8.2f} {start_s / base_s:>6.1f} "
                f"{more_s:>11.2f} {more_s / base_s:>6.1f}"
            )
            if max(start_s, more_s) > bar_s:
                missed.append(
                    f"{name} with {label} subscriptions: {max(start_s, more_s):.1f} s of {bar_s:.0f}"
                )
    return missed


def moved(assignor: Assignor, partitions: int, workers: int) -> int:
    """How many partitions have another owner when the last worker has joined."""
    topics = {"topic": TopicSnapshot(partitions)}
    had = assignor.assign(group(topics, workers - 1, lambda _: ("topic",), {}))
    owners = {partition: member for member, own in had.items() for partition in own}
    now = had
    for _ in range(2):  # a cooperative one needs two rounds
        now = assignor.assign(group(topics, workers, lambda _: ("topic",), now))
    return sum(owners[partition] != member for member, own in now.items() for partition in own)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partitions", type=int, default=1_000_000)
    parser.add_argument("--members", type=int, default=2_000)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    missed = cost(arguments.partitions, arguments.members)
    print(f"\n{'partitions':>10} {'workers':>8} {'fewest':>7} " + " ".join(f"{name:>18}" for name in KAFKA))
    for partitions, workers in FLEETS:
        counts = " ".join(f"{moved(assignor, partitions, workers):>18}" for assignor in KAFKA.values())
        print(f"{partitions:>10,} {workers:>8} {partitions // workers:>7} {counts}")
    for sentence in missed:
        print(f"missed: {sentence}")
    return 1 if missed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
