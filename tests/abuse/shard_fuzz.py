"""Random lives make a core serve another state than its log says. After `--`: first, last seed (0 5000).

Runs the core alone, in virtual time: topics, streams, quarantine, snapshots and owners after each other.
Prints for each kind of failure the last steps of the first life that shows it.
"""

import sys
import traceback

from kit.lives.shard_fuzz import LENGTH, ShardLife
from kit.programs import Broken, report, run

MANY = 5_000
SHOWN = 12


async def main() -> None:
    first, last = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (0, MANY)
    kinds: set[str] = set()
    generations = 0
    for seed in range(first, last):
        life = ShardLife(seed)
        try:
            for _ in range(LENGTH):
                life.step()
                life.check()
            life.finish()
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            kind = f"{type(error).__name__} in {place.name}"
            if kind not in kinds:
                kinds.add(kind)
                print(
                    f"seed {seed}: {error}\n{traceback.format_exc()}",
                    *life.steps[-SHOWN:],
                    sep="\n",
                    flush=True,
                )
        generations += life.generations
    if kinds:
        raise Broken(f"states differ: {sorted(kinds)}")
    report(f"{last - first} lives with {generations} generations, nothing differed")


if __name__ == "__main__":
    run(main, limit_s=3_600)
