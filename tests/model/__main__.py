"""`python -m model`, which is `./x model`.

./x model                  the shallow spaces, and every rule dropped
./x model incremental      those of incremental groups
./x model --deep           the deep spaces as well; takes minutes
./x model --traces         also prints how it breaks without each rule
./x model --only NAME      only the walks whose name, or dropped rule, contains NAME
./x model --jobs N         so many walks at a time; as many as there are cores, where it is not given
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from model.cases import DEEP, DROPPED, SHALLOW, Case
from model.doubts import JUDGED, DoubtModel
from model.doubts_cases import DROPPED as DOUBT_DROPPED
from model.doubts_cases import HELD as DOUBT_HELD
from model.doubts_cases import DoubtCase
from model.explore import Walk, explore
from model.incremental import cases as incremental
from model.incremental.case import IncrementalCase
from model.incremental.dropped import DROPPED as INCREMENTAL_DROPPED
from model.keeping import SHARED, KeepingModel
from model.keeping_cases import DROPPED as KEEPING_DROPPED
from model.keeping_cases import HELD as KEEPING_HELD
from model.keeping_cases import KeepingCase
from model.quorum import Model
from model.session import SessionModel
from model.session_cases import DROPPED as SESSION_DROPPED
from model.session_cases import HELD, RIDDEN, SessionCase

AnyCase = Case | SessionCase | KeepingCase | DoubtCase | IncrementalCase

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


def run_doubts(case: DoubtCase, limit_s: float) -> tuple[Walk, bool]:
    """Walks a case of a node without a file; whether it ended as it must."""
    walk = explore(DoubtModel(case.rules, case.bounds), limit_s, (JUDGED,))
    return walk, bool(walk.broken) if case.dropped else walk.complete and not walk.broken


def _walk(case: AnyCase, limit_s: float) -> tuple[Walk, bool]:
    match case:
        case DoubtCase():
            return run_doubts(case, limit_s)
        case SessionCase():
            return run_session(case, limit_s)
        case KeepingCase():
            return run_keeping(case, limit_s)
        case IncrementalCase():
            return case.walk(limit_s)
        case _:
            return run(case, limit_s)


def _cases(what: str, *, deep: bool) -> Sequence[AnyCase]:
    if what == "incremental":
        return [
            *incremental.SPACES,
            *incremental.LARGE,
            *(incremental.DEEP if deep else ()),
            *INCREMENTAL_DROPPED,
        ]
    held = [*SHALLOW, *(DEEP if deep else ()), *HELD, *RIDDEN, *KEEPING_HELD, *DOUBT_HELD]
    return [*held, *DROPPED, *SESSION_DROPPED, *KEEPING_DROPPED, *DOUBT_DROPPED]


def _limited(case: AnyCase) -> tuple[Walk, bool]:
    return _walk(case, DEEP_LIMIT_S if case in DEEP or case in incremental.DEEP else LIMIT_S)


def _walked(cases: Sequence[AnyCase], jobs: int) -> Iterator[tuple[Walk, bool]]:
    """Walks them in several processes, and gives the outcomes in order."""
    if jobs <= 1:
        yield from map(_limited, cases)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
        yield from pool.map(_limited, cases)


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="./x model",
        description="Walks the models of the log, of doubts, of a member's life and of kept partitions.",
    )
    parser.add_argument(
        "what",
        nargs="?",
        default="log",
        choices=("log", "incremental"),
        help="incremental: of that kind of group",
    )
    parser.add_argument("--deep", action="store_true", help="the spaces that take minutes, too")
    parser.add_argument("--traces", action="store_true", help="print how it breaks without each rule")
    parser.add_argument(
        "--only", default="", metavar="NAME", help="only walks whose name or rule contains it"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="walks at a time")
    options = parser.parse_args()
    cases = [
        case
        for case in _cases(options.what, deep=options.deep)
        if options.only in case.name or options.only in case.dropped
    ]
    if not cases:
        parser.error(f"no walk is named {options.only!r}")
    began = time.monotonic()
    states = failed = dropped = 0
    for case, (walk, good) in zip(cases, _walked(cases, options.jobs), strict=True):
        states += walk.states
        failed += not good
        dropped += bool(case.dropped)
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
        f"{len(cases)} walks, {dropped} of them without a rule: {states:,} states in {spent:.1f} s; "
        f"{failed or 'none'} ended otherwise than it must"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
