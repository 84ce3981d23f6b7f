"""The Lua scripts that run at a node, each atomic there."""

from dataclasses import dataclass
from hashlib import sha1
from importlib import resources

_FOLDER = resources.files("muster_metadata") / "lua"
_ON_A_LOG = (
    "inspect", "prepare", "append", "repair", "check", "acknowledge", "trim", "hashes", "stage", "install",
    "exported", "snapshot", "mark", "raise", "lower", "readmit", "note",
    "vacant", "discard", "entries", "portion",
)  # fmt: skip
_OTHERS = (
    "initialise", "configure", "lease", "renew", "adopt", "bury", "forget", "own", "seal", "doubt", "doubts",
    "tell", "told",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Script:
    """One script.

    Attributes:
        name: its file without the ending.
        source: the Lua source that is loaded.
        sha: its SHA-1, by which it is called.
    """

    name: str
    source: str
    sha: str


def _load(name: str, *, on_a_log: bool) -> Script:
    source = (_FOLDER / f"{name}.lua").read_text("utf-8")
    if on_a_log:
        source = (_FOLDER / "_log.lua").read_text("utf-8") + source
    return Script(name, source, sha1(source.encode(), usedforsecurity=False).hexdigest())


SCRIPTS = {name: _load(name, on_a_log=True) for name in _ON_A_LOG} | {
    name: _load(name, on_a_log=False) for name in _OTHERS
}
"""All scripts, by name."""
