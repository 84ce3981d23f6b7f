"""The Python blocks of the pages."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("clients/*/README.md")])
PAGES += [ROOT / "protos" / "README.md", ROOT / "assignors" / "README.md"]

BEFORE = {
    "README.md": """
import asyncio


async def fetch(number: int, position: int) -> list[int]:
    await asyncio.sleep(0.05)
    return [position]


async def store(items: list[int], token: str) -> None:
    assert items and token


""",
    "docs/metrics.md": """
import asyncio

from muster import Partition


async def last_position(number: int) -> int:
    return 1_000 + number


async def work_through(number: int, position: int) -> int:
    await asyncio.sleep(0.05)
    return position + 1


async def work(p: Partition) -> None:
    position = await p.committed() or 0
    while True:
        await p.commit(position := await work_through(p.number, position))


""",
}
"""What a page leaves to its reader."""

PARTS = ("docs/leadership.md",)
"""Pages whose blocks are parts of programs, also of other libraries' before they go over."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block.

    Attributes:
        page: path of its page.
        line: where it begins.
        code: what it holds, with what its page leaves out.
    """

    page: str
    line: int
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def group(self) -> str:
        """The group that it joins; empty: it is no worker."""
        found = re.search(r'group="([^"]+)"', self.code)
        return found[1] if found and "muster.run(" in self.code else ""


def blocks() -> Iterator[Block]:
    """All of them."""
    for page in PAGES:
        text = page.read_text("utf-8")
        name = page.relative_to(ROOT).as_posix()
        if name in PARTS:
            continue
        for found in re.finditer(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
            line = text.count("\n", 0, found.start()) + 2
            yield Block(name, line, BEFORE.get(name, "") + found[1])
