"""What one process does: plays inputs of one target, and keeps what they broke.

`python -m fuzz.session NAME --seconds S --inputs N --seed K --out FOLDER [--plain]`; `./x fuzz` starts it.
"""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from fuzz import corpus
from fuzz.target import Finding, finding_of, load, shrunk

PROGRESS_S = 10.0
FINDINGS_MAX = 20
"""Kinds of findings after which a target is left alone."""

SEEDS = 100
"""Inputs at random that a guided choice begins with, beside the corpus."""

END_FILE = "end.json"


class Watched:
    """Plays inputs and counts them; one finding of each kind is kept, as short as it can be made.

    Args:
        name: of the target.
        out: folder for what is found.
        limit: number of inputs.
        seconds: time to spend.
    """

    def __init__(self, name: str, out: Path, limit: int, seconds: float) -> None:
        self.target = load(name)
        self._out = out
        self._limit = limit
        self._began_s = self._said_s = time.monotonic()
        self._ends_s = self._began_s + seconds
        self._number = 0
        self._kinds: set[str] = set()

    @property
    def over(self) -> bool:
        """Whether there were enough inputs, or enough findings."""
        return self._number >= self._limit or time.monotonic() >= self._ends_s or self._crowded

    @property
    def _crowded(self) -> bool:
        return len(self._kinds) >= FINDINGS_MAX

    def play(self, data: bytes) -> None:
        """Plays one input."""
        finding = finding_of(self.target, data)
        self._number += 1
        if finding is not None and finding.kind not in self._kinds and not self._crowded:
            self._kinds.add(finding.kind)
            self._keep(shrunk(self.target, finding))
        now_s = time.monotonic()
        if now_s - self._said_s >= PROGRESS_S:
            self._said_s = now_s
            print(f"{self.target.name}: {self._line(now_s)}", flush=True)

    def end(self) -> None:
        """Says how it went, for who started the process."""
        text = {"line": self._line(time.monotonic()), "findings": len(self._kinds)}
        (self._out / END_FILE).write_text(json.dumps(text))

    def _line(self, now_s: float) -> str:
        seconds = now_s - self._began_s
        found = f", {len(self._kinds)} kinds of findings" if self._kinds else ""
        return (
            f"{self._number:,} inputs in {seconds:.0f} s, {self._number / max(seconds, 0.001):,.0f}/s{found}"
        )

    def _keep(self, finding: Finding) -> None:
        name = hashlib.sha256(finding.kind.encode()).hexdigest()[:12]
        file = self._out / f"{self.target.name}-{name}.bin"
        file.write_bytes(finding.data)
        print(f"{self.target.name}: FINDING {finding.kind}: {file}\n{finding.trace}", flush=True)


def has_guide() -> bool:
    """Whether Atheris is installed; it has no wheel for every machine."""
    return find_spec("atheris") is not None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--inputs", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plain", action="store_true")
    asked = parser.parse_args()

    def watched() -> Watched:
        return Watched(asked.name, asked.out, asked.inputs, asked.seconds)

    if asked.plain:
        from fuzz import plain

        player = watched()
        for data in plain.inputs(player.target, asked.seed):
            if player.over:
                break
            player.play(data)
        player.end()
    else:
        _guided(asked.name, asked.out, asked.seed, watched)


def _guided(name: str, out: Path, seed: int, watched: Callable[[], Watched]) -> None:
    from fuzz import guided, plain

    with guided.instrumented():
        player = watched()
    folder = out / f"{name}.corpus"
    folder.mkdir(exist_ok=True)
    # Left to itself libFuzzer begins with short inputs, which reach little of what calls after calls do.
    for data in islice(plain.inputs(player.target, seed), len(corpus.read(name)) + SEEDS):
        (folder / hashlib.sha256(data).hexdigest()[:20]).write_bytes(data)

    def play(data: bytes) -> None:
        player.play(data)
        if player.over:
            player.end()
            sys.stdout.flush()
            guided.leave()

    guided.choose(play, folder, seed, player.target.longest_bytes)


if __name__ == "__main__":
    main()
