"""Real text to count words in."""

import os
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from stat import S_ISREG

_WORD = re.compile(r"\w+")
_SUFFIXES = frozenset({".md", ".rst", ".txt"})
_NAMES = frozenset({"METADATA", "README", "LICENSE", "NOTICE", "AUTHORS", "CHANGELOG"})
_MAX_FILE_BYTES = 2_000_000
_MAX_LINE_CHARACTERS = 2_000


class InputError(Exception):
    """There is no text to count words in; the message says where it was looked for."""


def words(line: str) -> list[str]:
    """The words of a line, in lower case."""
    return _WORD.findall(line.lower())


def count_words(lines: Iterable[str]) -> Counter[str]:
    """How often each word occurs in some lines: the plain count to compare the fleet's with."""
    total: Counter[str] = Counter()
    for line in lines:
        total.update(words(line))
    return total


def read_lines(folder: Path | None, limit_bytes: int) -> list[str]:
    """Lines with words in them, from the files of a folder or from the installed packages' documentation.

    Args:
        folder: any folder with text; None: the documentation of the installed packages.
        limit_bytes: enough text; of the default text only.

    Raises:
        InputError: there is none.
    """
    if folder is not None and not folder.is_dir():
        raise InputError(f"--input {folder}: there is no such folder")
    roots = [folder] if folder is not None else _package_folders()
    lines: list[str] = []
    size = 0
    for path in _text_files(roots, every_file=folder is not None):
        for line in _lines_of(path):
            lines.append(line)
            size += len(line)
        if folder is None and size >= limit_bytes:
            break
    if not lines:
        raise InputError(f"no text in {', '.join(str(root) for root in roots)}")
    return lines


def _package_folders() -> list[Path]:
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sysconfig.get_path("stdlib")}
    return sorted(Path(path) for path in paths if path and Path(path).is_dir())


def _text_files(roots: list[Path], *, every_file: bool) -> Iterator[Path]:
    """Those of the folders, in order; without files that vanish meanwhile, as compilers' do."""
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders.sort()
            for path in (Path(folder, name) for name in sorted(names)):
                if (every_file or path.suffix in _SUFFIXES or path.name in _NAMES) and _is_small_file(path):
                    yield path


def _is_small_file(path: Path) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return S_ISREG(status.st_mode) and status.st_size <= _MAX_FILE_BYTES


def _lines_of(path: Path) -> Iterator[str]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError):
            print(f"demo: {path} cannot be read and is left out: {error.strerror}", file=sys.stderr)
        return  # not text
    if "\0" in text:
        return
    for line in text.splitlines():
        cut = line.strip()[:_MAX_LINE_CHARACTERS]
        if words(cut):
            yield cut
