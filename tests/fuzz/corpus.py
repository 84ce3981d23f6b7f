"""The inputs that are kept for each target: a text file each, an input a line in base64."""

import base64
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).with_name("corpus")
MAX_BYTES = 16 << 10
"""Of the inputs of one target: the repository keeps few."""

MAX_INPUTS = 80
INPUT_MAX_BYTES = MAX_BYTES // 8


def read(name: str) -> list[bytes]:
    """The inputs of a target."""
    file = FOLDER / f"{name}.txt"
    return [base64.b64decode(line) for line in file.read_text().split()] if file.exists() else []


def write(name: str, inputs: Iterable[bytes]) -> int:
    """Keeps some inputs, each of which reaches something: of all lengths, as many as there is room for.

    Returns:
        Their number.
    """
    known = sorted({data for data in inputs if len(data) <= INPUT_MAX_BYTES}, key=lambda one: (len(one), one))
    step = 1
    while len(kept := known[::step]) > MAX_INPUTS or sum(map(len, kept)) > MAX_BYTES:
        step += 1
    lines = [base64.b64encode(data).decode() + "\n" for data in kept]
    (FOLDER / f"{name}.txt").write_text("".join(lines))
    return len(kept)
