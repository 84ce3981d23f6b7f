"""Random damages of what nodes hold: `muster verify` finds each, or it is harmless by a written rule.

One damage at a time is done to the keys of real logs, judged, and undone. What is not found must be what
docs/audit.md calls harmless: `_harmless` knows these rules.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from kit.damage.forging import FORGING
from kit.damage.keys import ANY, HASHES, STRINGS
from kit.damage.nodes import NODES
from kit.damage.snapshots import SNAPSHOTS
from kit.damage.strange_records import STRANGE
from kit.damage.streams import STREAMS
from kit.damage.target import Damage, Entry, Target, place
from muster_core.audit.anchor import Anchor
from muster_core.position import Position
from muster_server.verify.anchors import Anchoring, as_text
from muster_server.verify.reader import LogUnreadableError
from muster_server.verify.verifier import verify

Audit = Callable[[str], frozenset[str]]
"""Which promises another audit finds broken at an address.

Raises `LogUnreadableError` where it cannot read.
"""

_UNREADABLE = frozenset({"unreadable"})
_SCRATCH = b"muster:scratch"


@dataclass(slots=True)
class Tally:
    """What became of the damages.

    Attributes:
        caught: found as a broken promise.
        unreadable: refused with a sentence.
        noted: a node that lacks something was named.
        harmless: not found, and harmless by a rule: rule → how many.
        anchored: not found but by an anchor: what was done.
        missed: not found, and no rule says why: what was done.
        crashed: ended with another exception: what was done.
        audited: how many another audit judged as well.
        disagreed: those of which it said something else: what was done, and what both say.
    """

    caught: int = 0
    unreadable: int = 0
    noted: int = 0
    harmless: dict[str, int] = field(default_factory=dict)
    anchored: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    crashed: list[str] = field(default_factory=list)
    audited: int = 0
    disagreed: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        """What must not be."""
        return [*self.missed, *self.crashed, *self.disagreed]

    def __str__(self) -> str:
        harmless = ", ".join(f"{count} {rule}" for rule, count in sorted(self.harmless.items()))
        return (
            f"{self.caught} caught, {len(self.anchored)} by an anchor alone, {self.unreadable} unreadable, "
            f"{self.noted} noted, "
            f"{len(self.missed)} missed, {len(self.crashed)} crashes; "
            f"{self.audited} audited, {len(self.disagreed)} disagreements; harmless: {harmless or 'none'}"
        )


class Stage:
    """The nodes of a cluster that nobody writes to any more.

    Args:
        url: their addresses.
        ports: their ports.
        folder: for an anchor.
    """

    def __init__(self, url: str, ports: Sequence[int], folder: Path) -> None:
        self._url = url
        self._anchor = folder / "anchor.json"
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
        self._anchor.write_bytes(as_text(Anchor(report.cluster_id, 0, report.ends), None))
        return report.clean

    def run(
        self, seed: int, count: int, audit: Audit | None = None, every: int = 1, *, forged: bool = False
    ) -> Tally:
        """Does so many damages, one after the other.

        Args:
            seed: of the damages.
            count: how many.
            audit: judges as well; None: nobody does.
            every: it judges one of so many.
            forged: only forgings, on all nodes.
        """
        tally = Tally()
        for number in range(count):
            draw = random.Random(f"{seed} {number}")
            everywhere = len(self._nodes)
            count_of = everywhere if forged else draw.choice([1, 1, 2, everywhere // 2 + 1, everywhere])
            nodes = draw.sample(range(everywhere), count_of)
            keys = sorted(key for key in self._whole[nodes[0]] if _is_judged(key))
            first = self._nodes[nodes[0]]
            kinds = {key: first.type(key).decode() for key in keys}
            key = draw.choice([key for key in keys if kinds[key] == "stream" or not forged])
            others = [one for one in keys if kinds[one] == kinds[key]]
            bases = sorted({key.rpartition(b":")[0] for key in keys if key.endswith(b":log")})
            target = Target([self._nodes[node] for node in nodes], key, draw, others, self._nodes, bases)
            damage = draw.choice(_FORGED if forged else _damages_of(key, kinds[key]))
            try:
                said = damage(target)
                on = f"{key.decode()} on nodes {[n + 1 for n in nodes]}"
                what = f"seed {seed}, number {number}: {said} of {on}"
                self._judge(tally, what, target, damage)
                if audit is not None and number % every == 0:
                    self._compare(tally, what, audit)
            finally:
                self._restore()
        return tally

    def _judge(self, tally: Tally, what: str, target: Target, damage: Damage) -> None:
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
        elif self._only_an_anchor_tells(target, damage):
            tally.anchored.append(what)
        elif rule := self._harmless_of_all(target) if damage in NODES else self._harmless(target):
            tally.harmless[rule] = tally.harmless.get(rule, 0) + 1
        else:
            tally.missed.append(what)

    def _compare(self, tally: Tally, what: str, audit: Audit) -> None:
        """Has both judge the damage that is there, with what each says of it where they disagree."""
        tally.audited += 1
        try:
            verified = frozenset(+verify(self._url).broken)
        except LogUnreadableError:
            verified = _UNREADABLE
        except Exception:
            return  # `_judge` tells of it
        try:
            audited = audit(self._url)
        except LogUnreadableError:
            audited = _UNREADABLE
        except Exception as error:
            tally.crashed.append(f"{what}, audited: {type(error).__name__}: {error}")
            return
        if audited != verified:
            tally.disagreed.append(f"{what}: {sorted(verified)} verified, {sorted(audited)} audited")

    def _only_an_anchor_tells(self, target: Target, damage: Damage) -> bool:
        """A right log on all nodes, other than the one before: an anchor made of that one has to show it."""
        if damage not in _FORGED or len(target.nodes) < len(self._nodes):
            return False
        return bool(verify(self._url, anchoring=Anchoring(str(self._anchor))).broken["L12"])

    def _harmless_of_all(self, target: Target) -> str:
        """The rules that say why nothing needs to be found, of each key that is another one."""
        rules = set[str]()
        for key in sorted({key for keys in self._whole for key in keys if _is_judged(key)}):
            pairs = zip(self._nodes, self._whole, strict=True)
            nodes = [node for node, whole in pairs if node.dump(key) != whole.get(key)]
            if nodes:
                rules.add(self._harmless(Target(nodes, key, target.draw, (), self._nodes, target.bases)))
        return "" if "" in rules else " and ".join(sorted(rules)) or "nothing changed"

    def _harmless(self, target: Target) -> str:
        """The rule of docs/audit.md that says why nothing needs to be found; empty: none does."""
        base, _, name = target.key.rpartition(b":")
        if not self._changed():
            return "nothing changed"
        if name in (b"acknowledged", b"exported", b"owners", b"snapshots"):
            return "a hint that says less"
        if name == b"node" and all(node.hget(target.key, "identity") for node in target.nodes):
            return "when the cluster was made, and where"
        if name == b"promise":
            return self._harmless_promise(target, base)
        if b":snapshot:" in target.key:
            return self._harmless_in_snapshot(target, name)
        if name == b"log":
            return self._harmless_in_log(target, base)
        return ""

    def _harmless_in_snapshot(self, target: Target, upto: bytes) -> str:
        lists = target.base + b":snapshots"
        for node in target.nodes:
            before, after = self._hash(lists, node), node.hgetall(lists)
            if not after.items() <= before.items():
                return ""
            if node.exists(target.key) and before.get(upto):
                stored, whole = node.hgetall(target.key), self._hash(target.key, node)
                if any(stored.get(field) != whole[field] for field in whole) or any(
                    field.isdigit() and field not in whole for field in stored
                ):
                    return ""
        return "a copy of a snapshot that is gone or has no marker, or fields beside its parts"

    def _harmless_promise(self, target: Target, base: bytes) -> str:
        for node in target.nodes:
            whole = self._whole[self._nodes.index(node)][target.key]
            self._nodes[0].restore(_SCRATCH, 0, whole, replace=True)
            before = self._nodes[0].hmget(_SCRATCH, "epoch", "nonce")
            self._nodes[0].delete(_SCRATCH)
            now = node.hmget(target.key, "epoch", "nonce")
            end = node.xrevrange(base + b":log", count=1)
            first = node.xrange(base + b":log", count=1)
            if now[0] == before[0] and first and place(first[0][0]).offset > 1:
                continue  # the Claim may be trimmed
            if now != before and int(now[0]) <= place(end[0][0]).epoch and now[0] != b"0":
                return ""
        return "a promise above the log, or its floor, tag or run"

    def _harmless_in_log(self, target: Target, base: bytes) -> str:
        if all(self._entries(target.key, node) == node.xrange(target.key) for node in target.nodes):
            return "what a server keeps of a stream beside its entries"
        acknowledged = self._acknowledged[base].stream_id
        if all(
            _upto(self._entries(target.key, node), acknowledged)
            == _upto(list(node.xrange(target.key)), acknowledged)
            for node in target.nodes
        ):
            return "entries after the acknowledged position"
        ends = [node.xrevrange(target.key, count=1) for node in target.nodes]
        if len(target.nodes) <= len(self._nodes) // 2 and all(
            not end or place(end[0][0]) <= Position.parse(acknowledged) for end in ends
        ):
            return "a node that lags"
        if all(self._is_covered_rest(node, target.key, base) for node in target.nodes):
            return "a beginning that a snapshot on the node covers"
        firsts = [node.xrange(target.key, count=1) for node in target.nodes]
        whole = [node for node in self._nodes if node not in target.nodes]
        trimmed = all(first and place(first[0][0]).offset > 1 for first in firsts)
        rest = [
            node.xrange(target.key, "(" + first[0][0].decode())
            for node, first in zip(target.nodes, firsts, strict=True)
        ]
        if trimmed and not whole and all(self._entries(target.key)[-len(one) :] == one for one in rest):
            return "the first entry of a trimmed log"
        if any(place(end[0][0]) > Position.parse(acknowledged) for end in ends if end):
            return "entries after the acknowledged position"
        return ""

    def _is_covered_rest(self, node: Any, key: bytes, base: bytes) -> bool:
        """Whether a node has the end of its log, and lists a snapshot that reaches its first entry."""
        rest = node.xrange(key)
        listed = [upto for upto, marker in node.hgetall(base + b":snapshots").items() if marker]
        return (
            bool(rest)
            and self._entries(key)[-len(rest) :] == rest
            and any(place(upto).offset >= place(rest[0][0]).offset for upto in listed)
        )

    def _hash(self, key: bytes, node: Any) -> dict[bytes, bytes]:
        """What a hash was on a node; empty: there was none."""
        whole = self._whole[self._nodes.index(node)].get(key)
        if whole is None:
            return {}
        node.restore(_SCRATCH, 0, whole, replace=True)
        try:
            return dict(node.hgetall(_SCRATCH))
        finally:
            node.delete(_SCRATCH)

    def _entries(self, key: bytes, node: Any = None) -> list[Entry]:
        """What a node held, or the first one."""
        node = self._nodes[0] if node is None else node
        node.restore(_SCRATCH, 0, self._whole[self._nodes.index(node)][key], replace=True)
        try:
            return list(node.xrange(_SCRATCH))
        finally:
            node.delete(_SCRATCH)

    def _changed(self) -> bool:
        return any(
            {key: node.dump(key) for key in node.keys("muster:*")} != whole
            for node, whole in zip(self._nodes, self._whole, strict=True)
        )

    def _restore(self) -> None:
        for node, whole in zip(self._nodes, self._whole, strict=True):
            for key in {*node.keys("muster:*"), *whole}:
                if key not in whole:
                    node.delete(key)
                elif node.dump(key) != whole[key] or node.pttl(key) >= 0:
                    node.restore(key, 0, whole[key], replace=True)


def _upto(entries: list[Entry], acknowledged: str) -> list[Entry]:
    """Those that are acknowledged."""
    return [entry for entry in entries if place(entry[0]) <= Position.parse(acknowledged)]


def _is_judged(key: bytes) -> bool:
    """Whether a key is of a log; leases and servers are hints that no check reads."""
    return (
        key == b"muster:node"
        or key == b"muster:owners"
        or (b"{" in key and not key.endswith((b":copy", b":vacant")))
    )


_FORGED = (*FORGING, *STRANGE)

_DAMAGES: dict[str, tuple[Damage, ...]] = {
    "stream": (*STREAMS, *_FORGED, *ANY),
    "hash": (*HASHES, *ANY),
    "string": (*STRINGS, *ANY),
}


def _damages_of(key: bytes, kind: str) -> tuple[Damage, ...]:
    """What may be done to a key; one time in many something is done to a whole node or log."""
    of_key = _DAMAGES[kind]
    if b":snapshot:" in key:
        of_key = (*of_key, *SNAPSHOTS * 2)
    return (*of_key, *NODES) if kind == "stream" else of_key


def damages() -> Iterator[str]:
    """What is done, in words."""
    for kind, makes in (*_DAMAGES.items(), ("snapshot", SNAPSHOTS), ("node", NODES)):
        for make in dict.fromkeys(makes):
            yield f"{kind}: {make.__name__.strip('_').replace('_', ' ')}"
