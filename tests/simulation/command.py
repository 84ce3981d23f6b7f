"""The command `./x simulate`."""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from simulation.run import Outcome, run_seed
from simulation.totals import Totals, told


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs seeds; the exit code is 1 if one of them found something."""
    options = _options(arguments)
    seeds = (
        [options.seed] if options.seed is not None else range(options.first, options.first + options.seeds)
    )
    began_s = time.monotonic()
    totals = Totals()
    live = partial(run_seed, minutes=options.minutes, dump=options.dump, changing=options.changing)
    for outcome in _outcomes(seeds, live, options.jobs, options.trace):
        totals.add(outcome)
        for line in told(outcome, _command(outcome.seed, options)) if not outcome.good else ():
            print(line, flush=True)
        if options.seed is not None or options.verbose:
            print(_one_line(outcome), flush=True)
        elif sys.stdout.isatty():
            print(f"\r{len(totals.outcomes)} of {len(seeds)} seeds", end="", flush=True)
        elif len(totals.outcomes) % 10 == 0:
            print(
                f"{len(totals.outcomes)} of {len(seeds)} seeds, {time.monotonic() - began_s:.0f} s",
                flush=True,
            )
        if options.stop and not outcome.good:
            break
    if sys.stdout.isatty():
        print()
    for line in totals.table():
        print(line)
    print(totals.line(time.monotonic() - began_s, options.minutes))
    return 1 if totals.failed else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./x simulate",
        description="Whole clusters in virtual time, under faults; docs/simulation.md says what is checked.",
    )
    parser.add_argument("--seeds", type=_positive, default=100, help="how many seeds (100)")
    parser.add_argument("--first", type=int, default=1, help="the first of them (1)")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--minutes", type=_minutes, default=5.0, help="virtual minutes of each (5)")
    parser.add_argument(
        "--changing",
        action="store_true",
        help="every group changes its kind, again and again; else a third does",
    )
    parser.add_argument("--jobs", type=_positive, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write what happened, with --seed")
    parser.add_argument(
        "--dump", type=Path, metavar="FOLDER",
        help="write what the nodes hold in the end, for `redis-cli --pipe`, and what was acknowledged and "
        "read, for `muster-audit check --acks --reads`; with --seed",
    )  # fmt: skip
    parser.add_argument("--stop", action="store_true", help="stop at the first seed that finds something")
    parser.add_argument("--verbose", action="store_true", help="a line for each seed")
    options = parser.parse_args(arguments)
    for name in ("trace", "dump"):
        if getattr(options, name) is not None and options.seed is None:
            parser.error(f"--{name} needs --seed")
    return options


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 1.5 <= minutes <= 120:
        raise argparse.ArgumentTypeError("must be 1.5 to 120")
    return minutes


def _command(seed: int, options: argparse.Namespace) -> str:
    minutes = f" --minutes {options.minutes:g}" if options.minutes != 5 else ""
    return f"./x simulate --seed {seed}{minutes}{' --changing' if options.changing else ''}"


def _one_line(outcome: Outcome) -> str:
    return (
        f"seed {outcome.seed}: {'good' if outcome.good else 'FAILED'}, trace {outcome.trace_hash[:16]}, "
        f"{outcome.delivered:,} messages, {outcome.commits:,} commits, {outcome.generations} generations, "
        f"{outcome.conversions} groups made incremental and {outcome.reversions} classic again, "
        f"whole again after {outcome.settled_s:.1f} s, at most {outcome.idle_repairs} idle repairs a minute, "
        f"{outcome.cpu_s:.1f} s of CPU; "
        + ", ".join(f"{name} {count}" for name, count in sorted(outcome.faults.items()))
    )


def _outcomes(
    seeds: Sequence[int], live: Callable[..., Outcome], jobs: int, trace: Path | None
) -> Iterator[Outcome]:
    """Each seed in a process of its own, made as a copy of this one: all begin alike."""
    context = multiprocessing.get_context("fork")
    running: dict[Connection, tuple[int, Any]] = {}
    waiting = list(reversed(seeds))
    while waiting or running:
        while waiting and len(running) < jobs:
            seed = waiting.pop()
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(sender, seed, live, trace))
            process.start()
            sender.close()
            running[receiver] = (seed, process)
        for ready in wait(list(running)):
            assert isinstance(ready, Connection)
            seed, process = running.pop(ready)
            try:
                outcome = ready.recv()
            except EOFError:
                raise SystemExit(f"seed {seed}: the simulator itself failed") from None
            process.join()
            ready.close()
            yield outcome


def _work(sender: Connection, seed: int, live: Callable[..., Outcome], trace: Path | None) -> None:
    if trace is None:
        outcome = live(seed)
    else:
        with trace.open("w", encoding="utf-8") as file:
            outcome = live(seed, tell=lambda line: print(line, file=file))
    sender.send(outcome)
    sender.close()
    # What is left of the simulated processes must not run any more.
    os._exit(0)
