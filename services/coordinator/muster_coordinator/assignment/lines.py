"""How work and answers travel between the two processes: short lines of JSON."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from muster_core.events import Assign, Assigned, Resolve, Resolved, Work
from muster_core.incremental.candidate import Candidate
from muster_core.incremental.partitions import Partitions
from muster_core.incremental.targets.target import Change, Question

_ITEMS = 2_000
"""Partitions or names of a line, about."""

END = b"\n"
"""The line after the last one."""


def lines_of_work(work: Work) -> Iterator[bytes]:
    """A piece of work; `END` follows."""
    if isinstance(work, Resolve):
        yield _line(["resolve", work.group_id, work.number, work.expressions])
        names = iter(work.names)
        while some := list(islice(names, _ITEMS)):
            yield _line(some)
        return
    question = work.question
    yield _line(
        ["assign", work.group_id, work.number, [work.server_assignor, question.alike, question.is_plain]]
    )
    for topic, numbers in question.topics.items():
        weights, zones = question.weights.get(topic, {}), question.zones.get(topic, {})
        yield _line(["t", topic, numbers, [*weights.items()], [[one, sorted(zones[one])] for one in zones]])
    alike: dict[frozenset[str], int] = {}
    for candidate in question.candidates.values():
        if candidate.topics not in alike:
            alike[candidate.topics] = len(alike)
            yield _line(["s", sorted(candidate.topics)])
    for portion in _portions(question.candidates.values(), lambda one: len(one.before)):
        yield _line(
            [
                "m",
                [
                    [
                        one.member_id,
                        one.group_instance_id,
                        one.rack_id,
                        alike[one.topics],
                        _by_topic(one.before),
                        one.weight,
                    ]
                    for one in portion
                ],
            ]
        )


def work_of(lines: Iterable[bytes]) -> Work:
    """The piece of work of some lines.

    Raises:
        ValueError, TypeError, LookupError: they are no work.
    """
    parts = iter(lines)
    kind, group_id, number, head = json.loads(next(parts))
    if kind == "resolve":
        return Resolve(
            group_id, number, tuple(head), tuple(name for line in parts for name in json.loads(line))
        )
    topics: dict[str, list[int]] = {}
    weights: dict[str, Mapping[int, int]] = {}
    zones: dict[str, Mapping[int, frozenset[str]]] = {}
    alike: list[frozenset[str]] = []
    candidates: dict[str, Candidate] = {}
    for line in parts:
        part = json.loads(line)
        if part[0] == "t":
            _, topic, topics[topic], of_topic, near = part
            if of_topic:
                weights[topic] = dict(of_topic)
            if near:
                zones[topic] = {number: frozenset(names) for number, names in near}
        elif part[0] == "s":
            alike.append(frozenset(part[1]))
        else:
            for member_id, instance_id, rack_id, wanted, before, weight in part[1]:
                candidates[member_id] = Candidate(
                    member_id, instance_id, rack_id, alike[wanted], _partitions(before), weight
                )
    server_assignor, are_alike, is_plain = head
    question = Question(candidates, topics, are_alike, is_plain, weights, zones)
    return Assign(group_id, number, server_assignor, question)


def lines_of_answer(answer: Assigned | Resolved) -> Iterator[bytes]:
    """An answer that has a result; `END` follows."""
    if isinstance(answer, Resolved):
        yield _line(["resolved", answer.group_id, answer.number])
        for expression, matched in (answer.topics or {}).items():
            names = iter(matched)
            yield _line([expression, list(islice(names, _ITEMS))])
            while some := list(islice(names, _ITEMS)):
                yield _line([expression, some])
        return
    yield _line(["assigned", answer.group_id, answer.number])
    changes = (answer.changes or {}).items()
    for portion in _portions(changes, lambda one: len(one[1].gets) + len(one[1].loses)):
        yield _line([[who, _by_topic(change.gets), _by_topic(change.loses)] for who, change in portion])


class AnswerReader:
    """Puts an answer together, line by line."""

    def __init__(self) -> None:
        self._head: list[Any] = []
        self._changes: dict[str, Change] = {}
        self._topics: defaultdict[str, set[str]] = defaultdict(set)

    def take(self, line: bytes) -> None:
        """Takes the next line.

        Raises:
            ValueError, TypeError, LookupError: it is none of an answer.
        """
        part = json.loads(line)
        if not self._head:
            self._head = part
        elif self._head[0] == "resolved":
            self._topics[part[0]].update(part[1])
        else:
            for who, gets, loses in part:
                self._changes[who] = Change(_partitions(gets), _partitions(loses))

    def answer(self) -> Assigned | Resolved:
        """The answer, after its last line.

        Raises:
            ValueError: there is none.
        """
        kind, group_id, number = self._head
        if kind == "resolved":
            topics = {expression: frozenset(names) for expression, names in self._topics.items()}
            return Resolved(group_id, number, topics)
        return Assigned(group_id, number, self._changes)


def _portions(items: Iterable[Any], size_of: Any) -> Iterator[list[Any]]:
    portion: list[Any] = []
    size = 0
    for item in items:
        portion.append(item)
        size += 10 + size_of(item)
        if size >= _ITEMS:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _line(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


def _by_topic(partitions: Partitions) -> Mapping[str, list[int]]:
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for topic, number in partitions:
        numbers[topic].append(number)
    return numbers


def _partitions(by_topic: Mapping[str, list[int]]) -> Partitions:
    return frozenset((topic, number) for topic, numbers in by_topic.items() for number in numbers)
