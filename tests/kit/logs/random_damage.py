"""Random damages of what nodes hold: `muster verify` finds each, or it is harmless by a written rule.

One damage at a time is done to the keys of real logs, judged, and undone. What is not found must be what
docs/audit.md calls harmless: `_harmless` knows these rules.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis
from muster_core.log.chain import chain_hash
from muster_core.position import Position
from muster_server.verify.reader import LogUnreadableError
from muster_server.verify.verifier import verify

Entry = tuple[bytes, dict[bytes, bytes]]
_SCRATCH = b"muster:scratch"


@dataclass(slots=True)
class Target:
    """What a damage is done to.

    Attributes:
        nodes: connections to the nodes that are damaged: one of them, two, or all.
        key: the key.
        draw: draws what is left open.
    """

    nodes: Sequence[Any]
    key: bytes
    draw: random.Random


@dataclass(slots=True)
class Tally:
    """What became of the damages.

    Attributes:
        caught: found as a broken promise.
        unreadable: refused with a sentence.
        noted: a node that lacks something was named.
        harmless: not found, and harmless by a rule: rule → how many.
        missed: not found, and no rule says why: what was done.
        crashed: ended with another exception: what was done.
    """

    caught: int = 0
    unreadable: int = 0
    noted: int = 0
    harmless: dict[str, int] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    crashed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        harmless = ", ".join(f"{count} {rule}" for rule, count in sorted(self.harmless.items()))
        return (
            f"{self.caught} caught, {self.unreadable} unreadable, {self.noted} noted, "
            f"{len(self.missed)} missed, {len(self.crashed)} crashes; harmless: {harmless or 'none'}"
        )


class Stage:
    """The nodes of a cluster that nobody writes to any more.

    Args:
        url: their addresses.
        ports: their ports.
    """

    def __init__(self, url: str, ports: Sequence[int]) -> None:
        self._url = url
        self._nodes: list[Any] = [redis.Redis(port=port) for port in ports]
        self._whole = [{key: node.dump(key) for key in node.keys("muster:*")} for node in self._nodes]
        self._notes: set[str] = set()
        self._acknowledged = {
            key.removesuffix(b":acknowledged"): max(
                Position.parse((node.get(key) or b"0-0").decode()) for node in self._nodes
            )
            for key in self._whole[0]
            if key.endswith(b":acknowledged")
        }

    def clean(self) -> bool:
        """Whether the logs are found clean as they are; what is noted of them is no news from then on."""
        report = verify(self._url)
        self._notes = set(report.notes)
        return report.clean

    def run(self, seed: int, count: int) -> Tally:
        """Does so many damages, one after the other."""
        tally = Tally()
        for number in range(count):
            draw = random.Random(f"{seed} {number}")
            nodes = draw.sample(range(len(self._nodes)), draw.choice([1, 1, 2, len(self._nodes)]))
            key = draw.choice(sorted(key for key in self._whole[nodes[0]] if _is_judged(key)))
            target = Target([self._nodes[node] for node in nodes], key, draw)
            kind = target.nodes[0].type(key).decode()
            damage = draw.choice(_DAMAGES[kind])
            said = damage(target)
            what = f"seed {seed}, number {number}: {said} of {key.decode()} on nodes {[n + 1 for n in nodes]}"
            try:
                self._judge(tally, what, target, len(nodes))
            finally:
                self._restore(nodes, key)
        return tally

    def _judge(self, tally: Tally, what: str, target: Target, damaged: int) -> None:
        try:
            report = verify(self._url)
        except LogUnreadableError:
            tally.unreadable += 1
            return
        except Exception as error:
            tally.crashed.append(f"{what}: {type(error).__name__}: {error}")
            return
        if not report.clean:
            tally.caught += 1
        elif set(report.notes) - self._notes:
            tally.noted += 1
        elif rule := self._harmless(target, damaged):
            tally.harmless[rule] = tally.harmless.get(rule, 0) + 1
        else:
            tally.missed.append(what)

    def _harmless(self, target: Target, damaged: int) -> str:
        """The rule of docs/audit.md that says why nothing needs to be found; empty: none does."""
        base, _, name = target.key.rpartition(b":")
        before = [self._whole[self._nodes.index(node)] for node in target.nodes]
        now = [node.dump(target.key) for node in target.nodes]
        if all(one.get(target.key) == dump for one, dump in zip(before, now, strict=True)):
            return "nothing changed"
        if name in (b"acknowledged", b"exported", b"owners", b"snapshots"):
            return "a hint that says less"
        if name == b"promise":
            return self._harmless_promise(target, base)
        if name == b"node":
            return "when the cluster was made, and where"
        if b":snapshot:" in target.key:
            return "a copy of a snapshot that is gone, or fields beside its parts"
        if name == b"log":
            return self._harmless_in_log(target, base, damaged)
        return ""

    def _harmless_promise(self, target: Target, base: bytes) -> str:
        for node in target.nodes:
            whole = self._whole[self._nodes.index(node)][target.key]
            self._nodes[0].restore(_SCRATCH, 0, whole, replace=True)
            before = self._nodes[0].hmget(_SCRATCH, "epoch", "nonce")
            self._nodes[0].delete(_SCRATCH)
            now = node.hmget(target.key, "epoch", "nonce")
            end = node.xrevrange(base + b":log", count=1)
            first = node.xrange(base + b":log", count=1)
            if now[0] == before[0] and first and _place(first[0][0]).offset > 1:
                continue  # the Claim may be trimmed
            if now != before and int(now[0]) <= _place(end[0][0]).epoch and now[0] != b"0":
                return ""
        return "a promise above the log, or its floor, tag or run"

    def _harmless_in_log(self, target: Target, base: bytes, damaged: int) -> str:
        acknowledged = self._acknowledged[base].stream_id
        ends = [node.xrevrange(target.key, count=1) for node in target.nodes]
        if damaged <= len(self._nodes) // 2 and all(
            not end or _place(end[0][0]) < Position.parse(acknowledged) for end in ends
        ):
            return "a node that lags"
        if all(self._is_covered_rest(node, target.key, base) for node in target.nodes):
            return "a beginning that a snapshot on the node covers"
        firsts = [node.xrange(target.key, count=1) for node in target.nodes]
        whole = [node for node in self._nodes if node not in target.nodes]
        trimmed = all(first and _place(first[0][0]).offset > 1 for first in firsts)
        rest = [
            node.xrange(target.key, "(" + first[0][0].decode())
            for node, first in zip(target.nodes, firsts, strict=True)
        ]
        if trimmed and not whole and all(self._entries(target.key)[-len(one) :] == one for one in rest):
            return "the first entry of a trimmed log"
        if any(_place(end[0][0]) > Position.parse(acknowledged) for end in ends if end):
            return "entries after the acknowledged position"
        return ""

    def _is_covered_rest(self, node: Any, key: bytes, base: bytes) -> bool:
        """Whether a node has the end of its log, and lists a snapshot that reaches its first entry."""
        rest = node.xrange(key)
        listed = [upto for upto, marker in node.hgetall(base + b":snapshots").items() if marker]
        return (
            bool(rest)
            and self._entries(key)[-len(rest) :] == rest
            and any(_place(upto).offset >= _place(rest[0][0]).offset for upto in listed)
        )

    def _entries(self, key: bytes) -> list[Entry]:
        node = self._nodes[0]
        node.restore(_SCRATCH, 0, self._whole[0][key], replace=True)
        try:
            return list(node.xrange(_SCRATCH))
        finally:
            node.delete(_SCRATCH)

    def _restore(self, nodes: Sequence[int], key: bytes) -> None:
        for node in nodes:
            dump = self._whole[node].get(key)
            if dump is None:
                self._nodes[node].delete(key)
            else:
                self._nodes[node].restore(key, 0, dump, replace=True)


def _is_judged(key: bytes) -> bool:
    """Whether a key is of a log; leases and servers are hints that no check reads."""
    return (
        key == b"muster:node"
        or key == b"muster:owners"
        or (b"{" in key and not key.endswith((b":copy", b":vacant")))
    )


def _place(text: bytes) -> Position:
    return Position.parse(text.decode())


def _flipped(draw: random.Random, data: bytes) -> bytes:
    """Bytes with one bit turned; one byte where there are none."""
    if not data:
        return b"\x01"
    changed = bytearray(data)
    changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(changed)


# --- damages of streams


def _rewrite(target: Target, entries: Sequence[Entry]) -> None:
    for node in target.nodes:
        pipeline = node.pipeline(transaction=False)
        pipeline.delete(target.key)
        for id_, fields in entries:
            pipeline.xadd(target.key, fields, id=id_)
        pipeline.execute()


def _of_first(target: Target) -> list[Entry]:
    return list(target.nodes[0].xrange(target.key))


def _a_bit(target: Target) -> str:
    entries = _of_first(target)
    index, name = target.draw.randrange(len(entries)), target.draw.choice([b"r", b"n", b"h"])
    fields = entries[index][1]
    fields[name] = _flipped(target.draw, fields.get(name, b""))
    _rewrite(target, entries)
    return f"a bit of {name.decode()} of {entries[index][0].decode()}"


def _entries_gone(target: Target) -> str:
    entries = _of_first(target)
    first = target.draw.randrange(len(entries))
    last = min(first + target.draw.choice([1, 1, 3, 20]), len(entries))
    _rewrite(target, entries[:first] + entries[last:])
    return f"entries {first} to {last}"


def _the_beginning_gone(target: Target) -> str:
    entries = _of_first(target)
    left = target.draw.randrange(len(entries))
    _rewrite(target, entries[left:])
    return f"the first {left} entries"


def _the_end_gone(target: Target) -> str:
    entries = _of_first(target)
    left = target.draw.randrange(len(entries))
    _rewrite(target, entries[:left])
    return f"all but the first {left} entries"


def _two_swapped(target: Target) -> str:
    entries = _of_first(target)
    index = target.draw.randrange(max(len(entries) - 1, 1))
    if len(entries) > 1:
        (one, a), (two, b) = entries[index : index + 2]
        entries[index : index + 2] = [(one, b), (two, a)]
    _rewrite(target, entries)
    return f"the contents of entries {index} and {index + 1}"


def _forged(target: Target) -> str:
    """Replaces the content of an entry by that of another one and makes the chain whole again."""
    entries = _of_first(target)
    index, other = (target.draw.randrange(len(entries)) for _ in range(2))
    entries[index][1][b"r"] = target.draw.choice([entries[other][1][b"r"], b"", entries[index][1][b"r"][:-1]])
    before = entries[index - 1][1][b"h"] if index else bytes(32)
    for id_, fields in entries[index:]:
        before = fields[b"h"] = chain_hash(before, _place(id_), fields[b"n"], fields[b"r"])
    _rewrite(target, entries)
    return f"entry {index} forged after {other}, with a chain"


# --- damages of hashes and strings


def _a_field_changed(target: Target) -> str:
    name = target.draw.choice(sorted(target.nodes[0].hkeys(target.key)))
    for node in target.nodes:
        value = node.hget(target.key, name) or b""
        node.hset(target.key, name, _flipped(random.Random(target.draw.random()), value))
    return f"field {name[:40]!r} changed"


def _a_field_gone(target: Target) -> str:
    name = target.draw.choice(sorted(target.nodes[0].hkeys(target.key)))
    for node in target.nodes:
        node.hdel(target.key, name)
    return f"field {name[:40]!r} gone"


def _a_field_more(target: Target) -> str:
    name = target.draw.choice([b"nonsense", b"3-9", b"7", b"9999999-1"])
    for node in target.nodes:
        node.hset(target.key, name, target.draw.choice([b"nonsense", b"3-9", b"9999999-1"]))
    return f"field {name!r} more"


def _another_value(target: Target) -> str:
    value = target.draw.choice([b"nonsense", b"0-1", b"9999999-1", b"", b"\xff\xfe", b"1-1"])
    for node in target.nodes:
        node.set(target.key, value)
    return f"value {value!r}"


# --- damages of any key


def _gone(target: Target) -> str:
    for node in target.nodes:
        node.delete(target.key)
    return "all"


def _another_kind(target: Target) -> str:
    for node in target.nodes:
        node.delete(target.key)
        target.draw.choice([node.sadd, node.rpush])(target.key, "nonsense")
    return "another kind"


Damage = Callable[[Target], str]

_ANY: tuple[Damage, ...] = (_gone, _another_kind)
_DAMAGES: dict[str, tuple[Damage, ...]] = {
    "stream": (
        _a_bit,
        _a_bit,
        _a_bit,
        _entries_gone,
        _the_beginning_gone,
        _the_end_gone,
        _two_swapped,
        _forged,
        _forged,
        *_ANY,
    ),
    "hash": (_a_field_changed, _a_field_changed, _a_field_gone, _a_field_more, *_ANY),
    "string": (_another_value, *_ANY),
}


def damages() -> Iterator[str]:
    """What is done, in words."""
    for kind, makes in _DAMAGES.items():
        for make in dict.fromkeys(makes):
            yield f"{kind}: {make.__name__.strip('_').replace('_', ' ')}"
