"""Golden stories of groups: commands and expected output, told to the core and over gRPC alike."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "integration" / "stories"
PARTITIONS = 3
STORIES = sorted(path.stem for path in FOLDER.glob("*.txt") if path.stem != "README")


@dataclass(frozen=True)
class Step:
    """A command of a story.

    Attributes:
        line: its number in the file.
        command: its first word.
        names: the members it concerns.
        expected: lines of output.
    """

    line: int
    command: str
    names: tuple[str, ...]
    expected: tuple[str, ...]

    def __str__(self) -> str:
        return f"line {self.line}: > {' '.join((self.command, *self.names))}"


def read(story: str) -> list[Step]:
    """The steps of a story."""
    return list(_steps((FOLDER / f"{story}.txt").read_text().splitlines()))


def _steps(lines: list[str]) -> Iterator[Step]:
    for number, line in enumerate(lines, 1):
        if line.startswith("> "):
            command, *names = line[2:].split()
            expected = []
            for following in lines[number:]:
                if not following or following.startswith(("> ", "#")):
                    break
                expected.append(following)
            yield Step(number, command, tuple(names), tuple(expected))


def deal(names: list[str]) -> dict[str, list[int]]:
    """Deals the partitions out in the order of the names."""
    ordered = sorted(names)
    return {
        name: [p for p in range(PARTITIONS) if p % len(ordered) == index]
        for index, name in enumerate(ordered)
    }
