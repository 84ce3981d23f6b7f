"""Random scripts of group calls: races of joins, votes, static members, time-outs, whole rebalances."""

import random
from collections.abc import Callable
from typing import Any

from conformance.traces import Script, Step

LONG_MS = 60_000
SHORT_SESSION_MS = 700
SHORT_REBALANCE_MS = 1_500
GUIDED_SESSION_MS = 900
GUIDED_REBALANCE_MS = 2_500

_MEMBERS = "aaaaabbbbbcccde"
_WAITS_MS = (300, 1_100, 2_000)
_VOTES = (
    (("range", "m0"), ("rr", "m0")),
    (("rr", "m0"), ("range", "m0")),
    (("rr", "m0"), ("st", "m0")),
    (("range", "m0"),),
    (("st", "m0"),),
)
_USUAL_CALLS = "join join join join join join sync sync sync heartbeat heartbeat describe leave commit fetch"


class _Author:
    """Writes one script.

    Args:
        seed: the same seed writes the same script.
        kind: what sort of script.
    """

    def __init__(self, seed: int, kind: str) -> None:
        self.draw = random.Random(f"{kind}-{seed}")
        self.kind = kind
        self.steps: list[Step] = []
        self.votes = {label: self.draw.choice(_VOTES) for label in "abcde"}
        self.instances = {label: f"i-{label}" for label in "abcde" if self.draw.random() < 0.6}
        self.versions = dict.fromkeys("abcde", 0)

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    def add(self, operation: str, label: str, argument: Any) -> None:
        self.steps.append(Step(operation, label, argument))

    def join(self, label: str, **changes: Any) -> None:
        argument = {"session": LONG_MS, "rebalance": LONG_MS, "protocols": [["range", "m0"], ["rr", "m0"]]}
        self.add("join", label, {**argument, **changes})

    def sync(self, label: str, **changes: Any) -> None:
        self.add("sync", label, {"gen": 0, "plan": f"p{len(self.steps)}", **changes})

    def commit(self, label: str, simple: float = 0.15) -> None:
        generation = self.draw.choice((0, 0, 0, 0, 1, -1))
        argument = {"offset": self.draw.randrange(100), "gen": generation, "simple": self.chance(simple)}
        self.add("commit", label, argument)

    # --- any call at any time

    def race(self) -> None:
        """Calls that mostly make sense, by members that know little of each other."""
        timed = self.kind in ("timed", "mixed")
        calls = _USUAL_CALLS.split() + ["wait"] * timed + ["leave"] * (self.kind == "static")
        if self.kind == "offsets":
            calls += ["commit", "fetch", "commit", "fetch"]
        for _ in range(self.draw.randint(8, 25)):
            label, operation = self.draw.choice(_MEMBERS), self.draw.choice(calls)
            match operation:
                case "join":
                    self._race_join(label)
                case "sync":
                    stranger = {"stranger": True} if self.chance(0.04) else {}
                    self.sync(label, gen=self.draw.choice((0, 0, 0, 0, 0, 0, 1, -1)), **stranger)
                case "heartbeat":
                    stranger = {"stranger": True} if self.chance(0.05) else {}
                    self.add("heartbeat", label, {"gen": self.draw.choice((0, 0, 0, 0, 1, -1)), **stranger})
                case "commit":
                    self.commit(label)
                case "wait":
                    self.add("wait", label, self.draw.choice(_WAITS_MS))
                case _:
                    self.add(operation, label, {})

    def _race_join(self, label: str) -> None:
        changes: dict[str, Any] = {}
        if self.kind in ("votes", "mixed"):
            changes["protocols"] = [list(protocol) for protocol in self.votes[label]]
        else:
            changes["protocols"] = [["range", "m0"], ["rr", "m0"]]
        if self.kind in ("timed", "mixed"):
            changes["rebalance"] = SHORT_REBALANCE_MS
            changes["session"] = self.draw.choice((SHORT_SESSION_MS, SHORT_SESSION_MS, LONG_MS))
        for protocol in changes["protocols"]:
            if self.chance(0.1):
                protocol[1] = "m1"
        if self.chance(0.03):
            changes["protocols"] = []
        if self.chance(0.02):
            changes["session"] = self.draw.choice((0, 1, 120_000))
        if self.kind in ("static", "mixed") and (label in self.instances or self.chance(0.1)):
            changes["instance"] = self.instances.get(label, "i-a") if self.chance(0.9) else "i-a"
        for name, share in (("fresh", 0.08), ("stranger", 0.02)):
            if self.chance(share):
                changes[name] = True
        if self.chance(0.04):
            changes["type"] = "other"
        self.join(label, **changes)

    # --- whole rebalances

    def guide(self) -> None:
        """Members that follow the protocol, one after the other, with disturbances between the rebalances."""
        members = list("abcd"[: self.draw.randint(1, 3)])
        timed = self.chance(0.3)
        times = {"rebalance": GUIDED_REBALANCE_MS if timed else LONG_MS}
        present: list[str] = []
        for label in members:
            static = {"instance": f"i-{label}"} if self.chance(0.35) else {}
            self._guided_join(label, times, static)
            if not static:
                self._guided_join(label, times, {})
            present.append(label)
            self._rebalance(present, times)
        for _ in range(self.draw.randint(1, 4)):
            self.draw.choice(self._disturbances(present, times))()
            if len(self.steps) > 55:
                break

    def _guided_join(self, label: str, times: dict[str, int], more: dict[str, Any]) -> None:
        metadata = f"m{self.versions[label]}"
        self.join(label, protocols=[["range", metadata], ["rr", metadata]], **times, **more)

    def _rebalance(self, present: list[str], times: dict[str, int]) -> None:
        for label in self.draw.sample(present, len(present)):
            if self.chance(0.3):
                self.add("heartbeat", label, {"gen": 0})
            self._guided_join(label, times, {})
        for label in self.draw.sample(present, len(present)):
            self.sync(label)
        for label in present:
            if self.chance(0.4):
                self._usual(label)

    def _usual(self, label: str) -> None:
        match self.draw.choice(("heartbeat", "commit", "fetch", "describe", "sync")):
            case "commit":
                self.commit(label, 0.08)
            case "heartbeat":
                self.add("heartbeat", label, {"gen": 0})
            case "sync":
                self.sync(label)
            case other:
                self.add(other, label, {})

    def _disturbances(self, present: list[str], times: dict[str, int]) -> list[Callable[[], None]]:
        label = self.draw.choice(present)

        def changed() -> None:
            self.versions[label] = self.draw.randint(1, 3)
            self._guided_join(label, times, {})
            self._rebalance(present, times)

        def restarted() -> None:
            self._guided_join(label, times, {"fresh": True})
            self._guided_join(label, times, {})
            self._rebalance(present, times)

        def left() -> None:
            self.add("leave", label, {})
            if len(present) > 1:
                present.remove(label)
            self._rebalance(present, times)

        def waited() -> None:
            self.add("wait", label, self.draw.choice((400, 1_300, 3_000)))
            self._rebalance(present, times)

        def hasty() -> None:
            self._guided_join(label, times, {})
            for each in present:
                self._usual(each)
            self._rebalance(present, times)

        def brief() -> None:
            self._guided_join(label, {**times, "session": GUIDED_SESSION_MS}, {})
            self._rebalance(present, times)

        more = [waited, brief] if times["rebalance"] != LONG_MS else []
        return [changed, restarted, left, hasty, *more]


def script(seed: int, kind: str) -> Script:
    """A random script, not answered by anybody yet.

    Args:
        seed: the same seed and kind give the same script.
        kind: one of `KINDS`.
    """
    author = _Author(seed, kind)
    (author.guide if kind == "guided" else author.race)()
    return Script(f"{kind}-{seed}", author.steps, [{} for _ in author.steps])


KINDS = ("plain", "guided", "timed", "votes", "static", "offsets", "mixed")
"""Sorts of scripts: `mixed` has everything that the others have."""
