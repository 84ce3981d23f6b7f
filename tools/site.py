"""Hooks of mkdocs for `./x docs`: the pages beside docs/, and links that lead out of it.

The pages are written to be read in the repository. On the site the README is the home page; links to files
that are no page become their names, and one to a file that does not exist ends the build.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "docs/README.md": "pages.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
}
"""Pages whose name on the site is another one."""

_SOURCES = {on_site: source for source, on_site in PAGES.items()}
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")
_FENCE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages under their names on the site."""
    for source, on_site in PAGES.items():
        name = source.removeprefix("docs/")
        if source.startswith("docs/") and (file := files.get_file_from_path(name)) is not None:
            files.remove(file)
        files.append(File.generated(config, on_site, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turns links of the repository into links of the site."""
    on_site = page.file.src_uri
    source = _SOURCES.get(on_site, f"docs/{on_site}")

    def turned(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match["target"]))
        if not (ROOT / target).exists():
            raise PluginError(f"{source}: {match['target']} does not exist")
        found = PAGES.get(target, target.removeprefix("docs/") if target.startswith("docs/") else "")
        if target == "docs":
            found = PAGES["docs/README.md"]
        if not found.endswith(".md"):
            return match["text"] if "`" in match["text"] else f"`{match['text']}`"
        way = posixpath.relpath(found, posixpath.dirname(on_site) or ".")
        return f"[{match['text']}]({way}{match['anchor'] or ''})"

    parts = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(turned, part) for part in parts)
