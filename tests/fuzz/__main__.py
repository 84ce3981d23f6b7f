"""`./x fuzz`: bytes that others choose, fed to what reads them."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fuzz import corpus, session
from fuzz.target import NAMES, finding_of, load

SECONDS = 60.0
LONG = 1_000_000
"""Inputs of each target in a long run."""
_FOR_EVER_S = 1e9
OUT = Path(__file__).resolve().parents[2] / "build" / "fuzz"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 where no input broke anything."""
    parser = argparse.ArgumentParser(prog="./x fuzz", description=__doc__)
    parser.add_argument(
        "--target", action="append", choices=NAMES, metavar="NAME", help="only this one; again"
    )
    parser.add_argument("--list", action="store_true", help="what the targets are, and what must hold")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each target (60)")
    parser.add_argument("--long", action="store_true", help=f"{LONG:,} inputs of each target, however long")
    parser.add_argument("--inputs", type=int, help="so many inputs of each target, however long")
    parser.add_argument("--seed", type=int, help="of what is drawn; printed where it is not given")
    parser.add_argument("--plain", action="store_true", help="without guidance by what inputs reach")
    parser.add_argument(
        "--keep", action="store_true", help="keep what reached something new in tests/fuzz/corpus"
    )
    parser.add_argument("--replay", type=Path, metavar="FILE", help="play one input again; needs --target")
    asked = parser.parse_args(arguments)
    names = asked.target or list(NAMES)
    if asked.list:
        for name in names:
            print(f"  {name:<16} {load(name).invariant}")
        return 0
    if asked.replay is not None:
        if len(names) != 1:
            parser.error("--replay needs the one --target that the input is for")
        return _replay(names[0], asked.replay)
    limit = LONG if asked.long else asked.inputs
    seconds = asked.seconds if limit is None else _FOR_EVER_S
    seed = time.time_ns() % 2**31 if asked.seed is None else asked.seed
    plain = asked.plain or not session.has_guide()
    print(f"x: seed {seed}; inputs {'are chosen at random' if plain else 'are chosen by what they reach'}")
    OUT.mkdir(parents=True, exist_ok=True)
    options = ["--seconds", seconds, "--inputs", limit or sys.maxsize, "--seed", seed, *["--plain"] * plain]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        ends = dict(zip(names, pool.map(lambda name: _played(name, options), names), strict=True))
    failed = 0
    print()
    for name, (line, good) in ends.items():
        failed += not good
        print(f"  {'held  ' if good else 'BROKEN'} {name:<16} {line}")
        if asked.keep and not plain:
            print(f"         {_keep(name)} inputs are kept")
    if failed:
        print(f"\nx: inputs that broke it are in {OUT}; again: ./x fuzz --target NAME --replay FILE")
    return 1 if failed else 0


def _played(name: str, options: Sequence[object]) -> tuple[str, bool]:
    """Has a process of its own play a target; returns how it went, and whether everything held."""
    out = OUT / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    command = [sys.executable, "-m", "fuzz.session", name, *map(str, options), "--out", str(out)]
    with (out / "errors.txt").open("w") as errors:
        done = subprocess.run(command, stderr=errors, check=False)
    end = out / session.END_FILE
    if done.returncode != 0 or not end.exists():
        return f"the process ended with {done.returncode}; see {errors.name}", False
    said = json.loads(end.read_text())
    return said["line"], not said["findings"]


def _keep(name: str) -> int:
    """Keeps what reaches most, by libFuzzer's count, of what was kept and what is new."""
    folder = OUT / name / f"{name}.corpus"
    return corpus.write(name, [*corpus.read(name), *(file.read_bytes() for file in folder.iterdir())])


def _replay(name: str, file: Path) -> int:
    finding = finding_of(load(name), file.read_bytes())
    print("held" if finding is None else f"BROKEN {finding.kind}\n{finding.trace}")
    return 0 if finding is None else 1


if __name__ == "__main__":
    sys.exit(main())
