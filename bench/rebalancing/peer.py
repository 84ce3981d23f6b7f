"""The figures of a Kafka beside us, in its three ways to rebalance."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MODES = {"classic": "range", "cooperative": "cooperative-sticky", "consumer": "KIP-848"}
"""What `measure` calls them, and what the table does."""
FIRST_JOIN_S, A_TRY_S = 600, 60
_FOLDER = Path(__file__).parents[1] / "peers" / "kafka"

Figures = dict[str, dict[str, float]]
"""By figure and mode, ms or a count."""


def can_run() -> bool:
    """Whether Java and Maven are here."""
    return shutil.which("java") is not None and shutil.which("mvn") is not None


def _measure(*figure: str, seconds: int = FIRST_JOIN_S) -> dict[str, Any]:
    """A figure; once more where it was not to be had, and that is said."""
    command = [str(_FOLDER / "measure"), *figure]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    if ended.returncode:
        said = (ended.stderr.strip() or ended.stdout.strip() or "nothing").splitlines()
        why = next((line for line in said if line.startswith("Exception")), said[-1])
        print(f"Kafka, {' '.join(figure)}: once more, it ended with {why}", flush=True)
        ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds)
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return result


def kafka(sizes: Sequence[int], tries: int, *, with_kill: bool, from_nothing: int) -> Figures:
    """Starts it, measures it and ends it. What it does not get done is left out, with a word.

    Args:
        sizes: of the groups that a member joins.
        tries: how often.
        with_kill: whether a process is killed.
        from_nothing: members of the group that begins; 0: none.
    """
    figures: Figures = {}

    def note(name: str, mode: str, value: float | None) -> None:
        if value is not None:
            figures.setdefault(name, {})[MODES[mode]] = value

    subprocess.run([_FOLDER / "up"], check=True, stdout=subprocess.DEVNULL)
    try:
        for mode in MODES:
            try:
                for size in sizes:
                    told = _measure(
                        "join", str(size), mode, str(tries), seconds=FIRST_JOIN_S + tries * A_TRY_S
                    )
                    note(f"join {size}", mode, told["median_ms"])
                    note(f"pause {size}", mode, told["pause_ms"])
                    note(f"moved {size}", mode, told["moved"])
                    note(f"stopped {size}", mode, told["stopped_but_stayed"])
                if with_kill:
                    note("lose", mode, _measure("lose", mode)["seconds"] * 1e3)
            except (subprocess.SubprocessError, LookupError, ValueError) as error:
                print(f"Kafka, {MODES[mode]}: {error}", flush=True)
        if from_nothing:
            note("nothing", "classic", _measure("rebalance", str(from_nothing))["from_nothing_ms"])
    finally:
        subprocess.run([_FOLDER / "down"], check=True)
    return figures
