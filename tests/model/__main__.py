"""`python -m model`, which is `./x model`.

./x model              the shallow spaces, and every rule dropped
./x model --deep       the deep spaces as well; takes minutes
./x model --traces     also prints how it breaks without each rule
"""

import argparse
import sys
import time

from model.cases import DEEP, DROPPED, SHALLOW, Case
from model.explore import Walk, explore
from model.quorum import Model

LIMIT_S = 120.0
DEEP_LIMIT_S = 3_600.0


def run(case: Case, limit_s: float) -> tuple[Walk, bool]:
    """Walks a case; whether it ended as it must."""
    walk = explore(Model(case.rules, case.bounds), limit_s, progress=case.progress)
    return walk, bool(walk.broken) if case.dropped else walk.complete and not walk.broken


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="./x model", description="Walks the model of the quorum log.")
    parser.add_argument("--deep", action="store_true", help="the spaces that take minutes, too")
    parser.add_argument("--traces", action="store_true", help="print how it breaks without each rule")
    options = parser.parse_args()
    cases = [*SHALLOW, *(DEEP if options.deep else ()), *DROPPED]
    began = time.monotonic()
    states = failed = 0
    for case in cases:
        walk, good = run(case, DEEP_LIMIT_S if case in DEEP else LIMIT_S)
        states += walk.states
        failed += not good
        verdict = "holds" if not walk.broken else f"breaks: {walk.broken}"
        if not walk.broken and not walk.complete:
            verdict = "cut off"
        print(
            f"{'ok  ' if good else 'FAIL'} {case.name:<48} {walk.states:>9,} states {walk.seconds:6.1f} s  "
            f"{verdict}",
            flush=True,
        )
        if walk.trace and (options.traces or not good):
            for number, step in enumerate(walk.trace, 1):
                print(f"       {number:2} {step}")
    spent = time.monotonic() - began
    print(
        f"{len(cases)} walks, {len(DROPPED)} of them without a rule: {states:,} states in {spent:.1f} s; "
        f"{failed or 'none'} ended otherwise than it must"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
