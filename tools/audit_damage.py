#!/usr/bin/env python3
"""Damages real logs at random, one damage at a time, and fails where `muster verify` misses one or crashes.

./x audit-damage [--count 250] [--seed 1]: so many damages of logs of each kind (fresh, whole, trimmed, on
five nodes).
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from kit.damage.stage import Tally
from kit.logs.real_logs import Life, real_logs

_AT_ONCE = 50


async def _run(life: Life, seed: int, count: int) -> list[Tally]:
    tallies = []
    with tempfile.TemporaryDirectory(prefix="muster-audit-damage-") as folder:
        async with real_logs(Path(folder), life) as stage:
            if not stage.clean():
                sys.exit("the logs are broken before anything is damaged")
            for part in range(0, count, _AT_ONCE):
                tally = await asyncio.to_thread(stage.run, seed + part, min(_AT_ONCE, count - part))
                print(f"{life.value} logs: {tally}", flush=True)
                for line in (*tally.missed, *tally.crashed):
                    print(f"  {line}", flush=True)
                tallies.append(tally)
    return tallies


def main() -> int:
    """Runs the damages."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=250)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    tallies = [tally for life in Life for tally in asyncio.run(_run(life, arguments.seed, arguments.count))]
    return 1 if any(tally.missed or tally.crashed for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
