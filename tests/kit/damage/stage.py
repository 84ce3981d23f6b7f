"""Random damages of what nodes hold: `muster verify` finds each, or it is harmless by a written rule.

One damage at a time is done to the keys of real logs, judged, and undone. What is not found must be what
docs/audit.md calls harmless (`kit.damage.harmless`).
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kit.damage.forging import FORGING
from kit.damage.harmless import harmless, harmless_everywhere, is_judged
from kit.damage.keys import ANY, HASHES, STRINGS
from kit.damage.nodes import NODES
from kit.damage.snapshots import SNAPSHOTS
from kit.damage.strange_records import STRANGE
from kit.damage.streams import STREAMS
from kit.damage.target import Damage, Target
from kit.damage.undamaged import Undamaged
from muster_core.audit.anchor import Anchor
from muster_server.verify.anchors import Anchoring, as_text
from muster_server.verify.reader import LogUnreadableError
from muster_server.verify.verifier import verify

Audit = Callable[[str], frozenset[str]]
"""Which promises another audit finds broken at an address.

Raises `LogUnreadableError` where it cannot read.
"""

_UNREADABLE = frozenset({"unreadable"})


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
        self._undamaged = Undamaged(ports)
        self._notes: set[str] = set()

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
        all_nodes = self._undamaged.nodes
        for number in range(count):
            draw = random.Random(f"{seed} {number}")
            everywhere = len(all_nodes)
            count_of = everywhere if forged else draw.choice([1, 1, 2, everywhere // 2 + 1, everywhere])
            nodes = draw.sample(range(everywhere), count_of)
            keys = sorted(key for key in self._undamaged.whole[nodes[0]] if is_judged(key))
            first = all_nodes[nodes[0]]
            kinds = {key: first.type(key).decode() for key in keys}
            key = draw.choice([key for key in keys if kinds[key] == "stream" or not forged])
            others = [one for one in keys if kinds[one] == kinds[key]]
            bases = sorted({key.rpartition(b":")[0] for key in keys if key.endswith(b":log")})
            target = Target([all_nodes[node] for node in nodes], key, draw, others, all_nodes, bases)
            damage = draw.choice(_FORGED if forged else _damages_of(key, kinds[key]))
            try:
                said = damage(target)
                on = f"{key.decode()} on nodes {[n + 1 for n in nodes]}"
                what = f"seed {seed}, number {number}: {said} of {on}"
                self._judge(tally, what, target, damage)
                if audit is not None and number % every == 0:
                    self._compare(tally, what, audit)
            finally:
                self._undamaged.restore()
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
        elif rule := (harmless_everywhere if damage in NODES else harmless)(self._undamaged, target):
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
        if damage not in _FORGED or len(target.nodes) < len(self._undamaged.nodes):
            return False
        return bool(verify(self._url, anchoring=Anchoring(str(self._anchor))).broken["L12"])


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
