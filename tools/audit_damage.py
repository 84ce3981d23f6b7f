#!/usr/bin/env python3
"""Damages real logs at random, one damage at a time, and fails where `muster verify` misses one or crashes.

./x audit-damage [--count 250] [--seed 1] [--life mixed]: so many damages of logs of each kind (fresh, whole,
trimmed, on five nodes, with groups of both kinds, and these trimmed), or of the kind that is named.

With `--spark N` one of N damages is also judged by the audit with Spark, which must find the same promises
broken: all in one session, which takes a second or two for each. `--forged` draws only forgings, with all
hashes made right on all nodes; `--anchored` names those that left a right log, which only an anchor shows.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from kit.damage.stage import Audit, Tally
from kit.logs.real_logs import Life, real_logs

_AT_ONCE = 50


@contextmanager
def _with_spark() -> Iterator[Audit]:
    """The audit of all nodes, in one session for all damages."""
    from muster_audit.check import CheckOptions, check
    from muster_audit.spark.session import spark_session

    options = CheckOptions(all_nodes=True, tasks=1)
    with tempfile.TemporaryDirectory(prefix="muster-audit-spark-") as name:
        folder = Path(name)
        with spark_session("damage", master="local[1]", folder=folder, log=folder / "spark.log") as spark:
            yield lambda url: frozenset(+check(spark, url, options, folder / "tables").broken)


async def _run(
    life: Life, seed: int, count: int, audit: Audit | None, every: int, *, forged: bool, anchored: bool
) -> list[Tally]:
    tallies = []
    with tempfile.TemporaryDirectory(prefix="muster-audit-damage-") as folder:
        async with real_logs(Path(folder), life) as stage:
            if not stage.clean():
                sys.exit("the logs are broken before anything is damaged")
            for part in range(0, count, _AT_ONCE):
                some = min(_AT_ONCE, count - part)
                tally = await asyncio.to_thread(stage.run, seed + part, some, audit, every, forged=forged)
                print(f"{life.value} logs: {tally}", flush=True)
                for line in [*tally.wrong, *(tally.anchored if anchored else ())]:
                    print(f"  {line}", flush=True)
                tallies.append(tally)
    return tallies


def main() -> int:
    """Runs the damages."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=250)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spark", type=int, default=0, metavar="N", help="Spark judges one of N as well")
    parser.add_argument("--life", type=Life, choices=[*Life], action="append", help="only these logs")
    parser.add_argument("--forged", action="store_true", help="only forgings, on all nodes")
    parser.add_argument("--anchored", action="store_true", help="name what an anchor alone shows")
    arguments = parser.parse_args()
    with _with_spark() if arguments.spark else nullcontext() as audit:
        tallies = [
            tally
            for life in arguments.life or Life
            for tally in asyncio.run(
                _run(
                    life,
                    arguments.seed,
                    arguments.count,
                    audit,
                    max(arguments.spark, 1),
                    forged=arguments.forged,
                    anchored=arguments.anchored,
                )
            )
        ]
    return 1 if any(tally.wrong for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
