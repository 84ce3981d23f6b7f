"""Random calls in any order make the core raise; it must not. After `--`: first and last seed (0 20000).

Runs the core alone, in virtual time. Prints for each kind of failure the shortest life that shows it.
"""

import sys

from kit.lives.core_fuzz import drawn, failure_of, shrunk
from kit.programs import Broken, report, run

MANY = 20_000


async def main() -> None:
    first, last = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (0, MANY)
    kinds: set[str] = set()
    for seed in range(first, last):
        failure = failure_of(drawn(seed))
        if failure is None or failure.kind in kinds:
            continue
        kinds.add(failure.kind)
        print(f"seed {seed}: {failure.kind}\n{failure.trace}", flush=True)
        for action in shrunk(drawn(seed), failure.kind):
            print("   ", action, flush=True)
    if kinds:
        raise Broken(f"the core raised: {sorted(kinds)}")
    report(f"{last - first} lives, nothing was raised")


if __name__ == "__main__":
    run(main, limit_s=3_600)
