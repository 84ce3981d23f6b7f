"""Programs that attack a promise, one in a file: what `./x safety` and `./x abuse` list and run.

A program has a docstring whose first line says what it attacks, and ends with `run(main)`. It prints what
happens and raises `Broken` where the promise does not hold.

One whose promise is known not to hold yet has a constant `STANDS_OPEN` that says why. It must end as broken:
once it holds, the command fails until the constant is gone.
"""

import argparse
import ast
import asyncio
import logging
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import structlog

HELD, BROKEN, CRASHED = range(3)
"""Exit codes of a program."""

_REPORT = "MUSTER_PROGRAM_REPORT"
_LIMIT_S = 300.0
_ALL = "all"


class Broken(Exception):
    """A promise does not hold; the message says which, and what was seen instead."""


def run(main: Callable[[], Coroutine[Any, Any, None]], limit_s: float = _LIMIT_S) -> NoReturn:
    """Runs a program and ends the process: with 0 if it held, 1 if it was `Broken`, 2 if it could not judge.

    Args:
        main: the program.
        limit_s: a program that takes longer could not judge.
    """
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        asyncio.run(asyncio.wait_for(main(), limit_s))
        code = HELD
    except Broken as broken:
        report(str(broken))
        code = BROKEN
    except Exception:
        traceback.print_exc()
        code = CRASHED
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of libraries that a program left in the middle of something must not hold it up.
    os._exit(code)


def report(line: str) -> None:
    """Prints a line that also stands in the table at the end of the command."""
    print(line, flush=True)
    if path := os.environ.get(_REPORT):
        with Path(path).open("a") as file:
            file.write(line + "\n")


@dataclass(frozen=True)
class Program:
    """A program of a folder.

    Attributes:
        name: of its file.
        module: to run it.
        summary: first line of its docstring.
        stands_open: why it is known to be broken; empty where it must hold.
    """

    name: str
    module: str
    summary: str
    stands_open: str


def programs_in(folder: Path) -> dict[str, Program]:
    """The programs of a folder by name, in their order: files that call `run` when they are started."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        source = path.read_text("utf-8")
        if path.name == "__main__.py" or '\nif __name__ == "__main__":\n' not in source:
            continue
        tree = ast.parse(source)
        summary = (ast.get_docstring(tree) or "").partition("\n")[0]
        found[path.stem] = Program(path.stem, f"{folder.name}.{path.stem}", summary, _stands_open(tree))
    return found


def _stands_open(tree: ast.Module) -> str:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "STANDS_OPEN":
            return str(ast.literal_eval(node.value))
    return ""


def verdict(program: Program, code: int) -> tuple[str, bool]:
    """What to call a program's end, and whether it ended as it must."""
    if code == HELD:
        return ("held", True) if not program.stands_open else ("HELD", False)
    if code == BROKEN:
        return ("BROKEN", False) if not program.stands_open else ("open", True)
    return "CRASHED", False


def command(folder: Path, arguments: Sequence[str] | None = None) -> int:
    """`./x FOLDER [NAME…] [-- ARGUMENTS]`: lists the programs, or runs those that are named.

    Returns:
        0 if each ended as it must.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    own: list[str] = []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, own = arguments[:at], arguments[at + 1 :]
    programs = programs_in(folder)
    parser = argparse.ArgumentParser(
        prog=f"./x {folder.name}",
        description="Runs programs that attack a promise; without a name: the list.",
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a program, or `all`; after `--` come arguments of its own"
    )
    names = parser.parse_args(arguments).names
    if not names:
        width = max(map(len, programs), default=0)
        for program in programs.values():
            print(f"  {program.name:<{width}}  {program.summary}")
        return 0
    if names == [_ALL]:
        names = list(programs)
    for name in names:
        if name not in programs:
            parser.error(f"there is no program {name!r}")
    return _run_all([programs[name] for name in names], own)


def _run_all(programs: Sequence[Program], arguments: Sequence[str]) -> int:
    rows, failed = list[str](), 0
    width = max(len(program.name) for program in programs)
    with tempfile.TemporaryDirectory(prefix="muster-programs-") as folder:
        for program in programs:
            print(f"== {program.name}: {program.summary}", flush=True)
            notes = Path(folder) / program.name
            done = subprocess.run(
                [sys.executable, "-m", program.module, *arguments],
                env={**os.environ, _REPORT: str(notes)},
                check=False,
            )
            word, good = verdict(program, done.returncode)
            failed += not good
            rows.append(f"{word:<7} {program.name:<{width}}  {program.summary}")
            if program.stands_open:
                advice = f"open: {program.stands_open}" if good else "STANDS_OPEN in it is no longer true"
                rows.append(f"{'':{width + 10}}{advice}")
            if notes.exists():
                rows += [f"{'':{width + 10}}{line}" for line in notes.read_text().splitlines()]
    print("\n" + "\n".join(rows))
    return 1 if failed else 0
