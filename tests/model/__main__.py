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
from model.keeping import SHARED, KeepingModel
from model.keeping_cases import DROPPED as KEEPING_DROPPED
from model.keeping_cases import HELD as KEEPING_HELD
from model.keeping_cases import KeepingCase
from model.quorum import Model
from model.session import SessionModel
from model.session_cases import DROPPED as SESSION_DROPPED
from model.session_cases import HELD, RIDDEN, SessionCase

LIMIT_S = 120.0
DEEP_LIMIT_S = 3_600.0


def run(case: Case, limit_s: float) -> tuple[Walk, bool]:
    """Walks a case; whether it ended as it must."""
    walk = explore(Model(case.rules, case.bounds), limit_s, case.goals)
    return walk, bool(walk.broken) if case.dropped else walk.complete and not walk.broken


def run_session(case: SessionCase, limit_s: float) -> tuple[Walk, bool]:
    """Walks a case of a member's life; whether it ended as it must."""
    walk = explore(SessionModel(case.rules, case.bounds, riding=case.riding), limit_s)
    return walk, bool(walk.broken) if case.is_found else walk.complete and not walk.broken


def run_keeping(case: KeepingCase, limit_s: float) -> tuple[Walk, bool]:
    """Walks a case of kept partitions; whether it ended as it must."""
    walk = explore(KeepingModel(case.rules, case.bounds), limit_s, (SHARED,))
    return walk, bool(walk.broken) if case.dropped else walk.complete and not walk.broken


def _walk(case: Case | SessionCase | KeepingCase, limit_s: float) -> tuple[Walk, bool]:
    match case:
        case SessionCase():
            return run_session(case, limit_s)
        case KeepingCase():
            return run_keeping(case, limit_s)
        case _:
            return run(case, limit_s)


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="./x model",
        description="Walks the models of the quorum log, of a member's life and of kept partitions.",
    )
    parser.add_argument("--deep", action="store_true", help="the spaces that take minutes, too")
    parser.add_argument("--traces", action="store_true", help="print how it breaks without each rule")
    options = parser.parse_args()
    held = [*SHALLOW, *(DEEP if options.deep else ()), *HELD, *RIDDEN, *KEEPING_HELD]
    dropped = [*DROPPED, *SESSION_DROPPED, *KEEPING_DROPPED]
    cases = held + dropped
    began = time.monotonic()
    states = failed = 0
    for case in cases:
        limit_s = DEEP_LIMIT_S if case in DEEP else LIMIT_S
        walk, good = _walk(case, limit_s)
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
        f"{len(cases)} walks, {len(dropped)} of them without a rule: {states:,} states in {spent:.1f} s; "
        f"{failed or 'none'} ended otherwise than it must"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
