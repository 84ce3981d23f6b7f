"""Checks of histories: each takes the events in order and keeps what contradicts a promise.

Ids are those of the safety specification (docs/safety.md, `muster verify`).
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from chaos.history import Event
from chaos.kinds import INCREMENTAL

LEASE_MS = 2_000
"""Time after which somebody else may answer: an OK after it is stale."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that a history contradicts.

    Attributes:
        promise: its id.
        at_ns: time of the event that shows it.
        detail: what is wrong, in words.
    """

    promise: str
    at_ns: int
    detail: str


class Checker(Protocol):
    """Follows a history."""

    violations: list[Violation]
    checked: int

    def feed(self, event: Event) -> None:
        """Takes the next event."""


@dataclass
class Commits:
    """O1, O2: what was acknowledged is there, and never goes back.

    Members commit growing values. A fetch must show at least the highest value that was acknowledged before
    the fetch began, and nothing that nobody had asked for when it ended.
    """

    violations: list[Violation] = field(default_factory=list)
    checked: int = 0
    highest: dict[tuple[str, int], int] = field(default_factory=dict)
    acknowledged: dict[tuple[str, int], dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    _asked: dict[tuple[str, int], int] = field(default_factory=dict)
    _open: dict[str, tuple[Event, dict[int, int]]] = field(default_factory=dict)

    def feed(self, event: Event) -> None:
        """Takes the next event."""
        kind = event["e"]
        if kind == "invoke" and event["f"] == "commit":
            key = (event["g"], event["p"])
            self._asked[key] = max(self._asked.get(key, -1), event["v"])
            self._open[event["op"]] = (event, {})
        elif kind == "invoke" and event["f"] == "fetch":
            floor = {p: self.highest.get((event["g"], p), -1) for p in event["ps"]}
            self._open[event["op"]] = (event, floor)
        elif kind in ("ok", "fail", "info") and event["op"] in self._open:
            begun, floor = self._open.pop(event["op"])
            if kind == "ok" and begun["f"] == "commit":
                key = (begun["g"], begun["p"])
                self.highest[key] = max(self.highest.get(key, -1), begun["v"])
                self.acknowledged[key][begun["v"]] = begun["m"]
            elif kind == "ok":
                self._check(event, begun, floor)

    def _check(self, event: Event, begun: Event, floor: dict[int, int]) -> None:
        for partition, least in floor.items():
            found = event["vs"].get(str(partition), -1)
            most = self._asked.get((begun["g"], partition), -1)
            self.checked += 1
            where = f"{begun['g']}/{partition}"
            if found < least:
                text = f"{where} was read as {found}, {least} had been acknowledged before the read began"
                self.violations.append(Violation("O1", event["t"], text))
            if found > most:
                text = f"{where} was read as {found}, nobody had asked for more than {most}"
                self.violations.append(Violation("O2", event["t"], text))


@dataclass
class Generations:
    """G1, G4, G9, M7: one owner per partition and generation, one outcome per generation, no way back.

    Of an incremental group: M7 of its epochs, and I3: a token names one owner.
    """

    violations: list[Violation] = field(default_factory=list)
    checked: int = 0
    newest: dict[str, int] = field(default_factory=dict)
    _owners: dict[tuple[str, int, int], tuple[str, str]] = field(default_factory=dict)
    _given: dict[tuple[str, int, str], dict[str, str]] = field(default_factory=dict)
    _member: dict[tuple[str, str], int] = field(default_factory=dict)
    _holders: dict[tuple[str, str], str] = field(default_factory=dict)
    _newest_token: dict[tuple[str, str], str] = field(default_factory=dict)
    _leaders: dict[tuple[str, int], str] = field(default_factory=dict)
    _bytes: dict[tuple[str, int, str], str] = field(default_factory=dict)

    def feed(self, event: Event) -> None:
        """Takes the next event."""
        if event["e"] != "note":
            return
        if event["f"] == "assigned":
            self._assigned(event)
            if event.get("kind") == INCREMENTAL:
                self._given_more(event)
            else:
                self._given_all(event)
        elif event["f"] == "joined":
            self._joined(event)
        elif event["f"] == "synced":
            self._synced(event)

    def _assigned(self, event: Event) -> None:
        group, generation, member = event["g"], event["gen"], event["m"]
        self.checked += 1
        last = self._member.get((group, member), -1)
        if generation < last:
            self._broken("M7", event, f"{member} of {group} went from generation {last} to {generation}")
        self._member[group, member] = generation
        self.newest[group] = max(self.newest.get(group, -1), generation)

    def _given_more(self, event: Event) -> None:
        """A member of an incremental group is told what is new for it: a token names one owner, and grows."""
        group, member = event["g"], event["m"]
        for partition, token in event["tokens"].items():
            where = f"{group}/{partition}"
            holder = self._holders.setdefault((where, token), member)
            if holder != member:
                self._broken("I3", event, f"{where}: token {token} was given to {holder} and to {member}")
            last = self._newest_token.get((where, member), "")
            if token < last:
                self._broken("I3", event, f"{where}: {member} was given {token} after {last}")
            self._newest_token[where, member] = token

    def _given_all(self, event: Event) -> None:
        group, generation, member = event["g"], event["gen"], event["m"]
        tokens: dict[str, str] = event["tokens"]
        before = self._given.setdefault((group, generation, member), tokens)
        if before != tokens:
            text = f"{member} got {tokens} in generation {generation} of {group}, and {before} before"
            self._broken("G4", event, text)
        for partition, token in tokens.items():
            owner = self._owners.setdefault((group, generation, int(partition)), (member, token))
            if owner[0] != member:
                text = f"{group}/{partition} belongs to {owner[0]} and {member} in generation {generation}"
                self._broken("G9", event, text)

    def _joined(self, event: Event) -> None:
        group, generation = event["g"], event["gen"]
        self.checked += 1
        leader = self._leaders.setdefault((group, generation), event["leader"])
        if leader != event["leader"]:
            text = f"generation {generation} of {group} has the leaders {leader} and {event['leader']}"
            self._broken("G1", event, text)

    def _synced(self, event: Event) -> None:
        key = (event["g"], event["gen"], event["m"])
        self.checked += 1
        before = self._bytes.setdefault(key, event["bytes"])
        if before != event["bytes"]:
            self._broken("G4", event, f"{key[2]} was answered other bytes in generation {key[1]} of {key[0]}")

    def _broken(self, promise: str, event: Event, detail: str) -> None:
        self.violations.append(Violation(promise, event["t"], detail))


@dataclass
class Answers:
    """E1, E3, E5: no OK from an owner that was deposed, or whose lease was over.

    Only answers that carry an epoch count: those of the prober, who asks all coordinators all the time.
    """

    violations: list[Violation] = field(default_factory=list)
    checked: int = 0
    _open: dict[str, Event] = field(default_factory=dict)
    _since: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    _silenced: dict[str, int] = field(default_factory=dict)

    def feed(self, event: Event) -> None:
        """Takes the next event."""
        if event["e"] == "invoke" and "node" in event:
            self._open[event["op"]] = event
        elif event["e"] == "note" and event["f"] == "silenced":
            self._silenced[event["node"]] = event["t"]
        elif event["e"] == "note" and event["f"] == "heard":
            self._silenced.pop(event["node"], None)
        elif event["e"] in ("ok", "fail", "info"):
            begun = self._open.pop(event["op"], None)
            if begun is not None and event["e"] == "ok":
                self._check(begun, event)

    def _check(self, begun: Event, event: Event) -> None:
        group, node, epoch = begun["g"], begun["node"], event["epoch"]
        self.checked += 1
        since = self._since[group]
        later = min((at for other, at in since.items() if other > epoch), default=None)
        what = f"{begun['f']} of {group} was answered OK by {node} in epoch {epoch}"
        if later is not None:
            late_ms = (event["t"] - later) // 1_000_000
            if begun["f"] == "heartbeat" and late_ms > LEASE_MS:
                text = f"{what}, {late_ms} ms after the first OK of a later epoch"
                self.violations.append(Violation("E3", event["t"], text))
            elif begun["f"] != "heartbeat" and begun["t"] > later:
                text = f"{what}, asked after the first OK of a later epoch"
                self.violations.append(Violation("E5", event["t"], text))
        since.setdefault(epoch, event["t"])
        silenced = self._silenced.get(node)
        if silenced is not None and event["t"] - silenced > LEASE_MS * 1_000_000:
            late_ms = (event["t"] - silenced) // 1_000_000
            text = f"{what}, {late_ms} ms after its renewals were taken away"
            self.violations.append(Violation("E1", event["t"], text))


def all_checkers() -> tuple[Commits, Generations, Answers]:
    """One of each."""
    return Commits(), Generations(), Answers()


def check_sink(writes: Iterable[tuple[str, int, str, str, int]]) -> list[Violation]:
    """Tokens: what a sink accepted, in its order.

    Args:
        writes: group, partition, token, member and value of each.
    """
    violations = []
    highest: dict[tuple[str, int], str] = {}
    holder: dict[tuple[str, int, str], str] = {}
    for group, partition, token, member, value in writes:
        where = f"{group}/{partition}"
        if token < highest.get((group, partition), ""):
            text = f"{where}: {value} of {member} was accepted with {token} after {highest[group, partition]}"
            violations.append(Violation("token", 0, text))
        highest[group, partition] = max(token, highest.get((group, partition), ""))
        owner = holder.setdefault((group, partition, token), member)
        if owner != member:
            text = f"{where}: token {token} was used by {owner} and by {member}"
            violations.append(Violation("token", 0, text))
    return violations


def check_log(
    acknowledged: Mapping[tuple[str, int], Mapping[int, str]],
    logged: Mapping[tuple[str, int], Sequence[tuple[int, str]]],
    *,
    trimmed: bool = False,
) -> list[Violation]:
    """L5, L7, O2: every acknowledged commit is in the log, once; the log's values only grow.

    Args:
        acknowledged: by group and partition: value and who committed it.
        logged: by group and partition: value and member of each commit, in the order of the log.
        trimmed: the beginnings of logs are gone: what is below the first value of a partition may be, too.
    """
    violations = []
    for key, values in acknowledged.items():
        where = f"{key[0]}/{key[1]}"
        there = logged.get(key, ())
        counts: dict[tuple[int, str], int] = defaultdict(int)
        for pair in there:
            counts[pair] += 1
        first = there[0][0] if there else max(values, default=0) + 1
        for value, member in values.items():
            if trimmed and value < first:
                continue
            if counts[value, member] != 1:
                times = counts[value, member]
                text = f"{where}: {value} of {member} was acknowledged and is {times} times in the log"
                violations.append(Violation("L5", 0, text))
        for (before, _), (after, member) in itertools.pairwise(there):
            if after < before:
                text = f"{where}: {after} of {member} follows {before} in the log"
                violations.append(Violation("O2", 0, text))
    return violations
