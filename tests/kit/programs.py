"""Programs that attack a promise, one in a file: what `./x safety` and `./x abuse` list and run.

A program has a docstring whose first line says what it attacks, and ends with `run(main)`. It prints what
happens and raises `Broken` where the promise does not hold.

One whose promise is known not to hold yet has a constant `STANDS_OPEN` that says why. It must end as broken:
once it holds, the command fails until the constant is gone.
"""

import argparse
import ast
import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
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
    """The programs of a folder by name, in their order: files that call `run`, or what does so."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        source = path.read_text("utf-8")
        tree = ast.parse(source)
        if not _is_program(tree):
            continue
        summary = (ast.get_docstring(tree) or "").partition("\n")[0]
        found[path.stem] = Program(path.stem, f"{folder.name}.{path.stem}", summary, _stands_open(tree))
    return found


def _is_program(tree: ast.Module) -> bool:
    """Not those that are started by a program, with arguments, and end as they like."""
    match tree.body:
        case [*_, ast.If(test=ast.Compare(left=ast.Name("__name__")), body=[ast.Expr(ast.Call(ast.Name()))])]:
            return True
    return False


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
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        help="keep in it what each program came to; one that held or broke before is not run again",
    )
    parsed = parser.parse_args(arguments)
    names = parsed.names
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
    return _run_all([programs[name] for name in names], own, parsed.results)


def _run_all(programs: Sequence[Program], arguments: Sequence[str], kept: Path | None) -> int:
    rows, failed = list[str](), 0
    width = max(len(program.name) for program in programs)
    results = _kept_in(kept)
    for number, program in enumerate(programs, 1):
        print(f"== {number}/{len(programs)} {program.name}: {program.summary}", flush=True)
        if program.name in results:
            print("as before", flush=True)
        else:
            results[program.name] = _result_of(program, arguments)
            if kept is not None and results[program.name].code in {HELD, BROKEN}:
                with kept.open("a") as file:
                    file.write("\n" + json.dumps({"name": program.name, **asdict(results[program.name])}))
        result = results[program.name]
        word, good = verdict(program, result.code)
        failed += not good
        rows.append(f"{word:<7} {program.name:<{width}}  {program.summary}")
        if program.stands_open:
            advice = f"open: {program.stands_open}" if good else "STANDS_OPEN in it is no longer true"
            rows.append(f"{'':{width + 10}}{advice}")
        rows += [f"{'':{width + 10}}{line}" for line in result.notes]
    print("\n" + "\n".join(rows))
    return 1 if failed else 0


@dataclass(frozen=True)
class _Result:
    """What a program came to: its exit code, and the lines that it reported."""

    code: int
    notes: list[str]


def _result_of(program: Program, arguments: Sequence[str]) -> _Result:
    with tempfile.TemporaryDirectory(prefix="muster-programs-") as folder:
        notes = Path(folder) / program.name
        done = subprocess.run(
            [sys.executable, "-m", program.module, *arguments],
            env={**os.environ, _REPORT: str(notes)},
            check=False,
        )
        return _Result(done.returncode, notes.read_text().splitlines() if notes.exists() else [])


def _kept_in(file: Path | None) -> dict[str, _Result]:
    """The results in a file by name, of which a line that was cut off is none."""
    if file is None or not file.exists():
        return {}
    lines = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]
    return {line["name"]: _Result(line["code"], line["notes"]) for line in lines}
