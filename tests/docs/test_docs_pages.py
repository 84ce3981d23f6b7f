"""Every page can be reached from the index, and every public name is in the reference."""

import posixpath
import re
from pathlib import Path

import muster
import muster.assignors
import muster.sinks
import muster.testing

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def links(page: str) -> set[str]:
    """Pages of docs/ that a page of it leads to."""
    targets = re.findall(r"\]\(([^)\s#:]+)", (DOCS / page).read_text("utf-8"))
    return {posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) for target in targets}


def test_every_page_can_be_reached_from_the_index() -> None:
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    reached, waiting = set[str](), ["README.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        waiting += links(page) & pages - reached - set(waiting)
    assert pages - reached == set()
    assert "docs/README.md" in (ROOT / "README.md").read_text("utf-8")


def test_every_public_name_is_in_the_reference() -> None:
    text = "".join(path.read_text("utf-8") for path in (DOCS / "reference").glob("*.md"))
    described = re.findall(r"^::: (\S+)$", text, flags=re.MULTILINE)
    public = {f"muster.{name}" for name in muster.__all__ if name != "assignors"}
    for module in (muster.assignors, muster.sinks, muster.testing):
        public |= {f"{module.__name__}.{name}" for name in module.__all__}
    assert public - set(described) == set()
    assert len(described) == len(set(described))
