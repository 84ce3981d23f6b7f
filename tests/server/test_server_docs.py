"""The pages: every link leads somewhere, and every page can be reached from the README."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def links(page: Path) -> list[tuple[Path, str]]:
    """The files that a page links to, with the heading."""
    targets = [link for link in _LINK.findall(page.read_text("utf-8")) if "://" not in link]
    return [
        ((page.parent / file).resolve() if file else page, heading)
        for file, _, heading in (target.partition("#") for target in targets)
    ]


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    texts = _HEADING.findall(page.read_text("utf-8"))
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}


def test_every_link_leads_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {file.name}#{heading}"
        for page in PAGES
        for file, heading in links(page)
        if not file.exists() or (heading and heading not in anchors(file))
    ]
    assert broken == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        todo += [file for file, _ in links(page)]
    assert {page.relative_to(ROOT) for page in set(PAGES) - seen} == set()
