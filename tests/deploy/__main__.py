"""`tests/deploy/e2e.sh`: installs Muster on the cluster that `kubectl` points at, hurts it, and judges."""

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from deploy.audit_job import CRONJOBS, run_audit
from deploy.faults import BAR_MS, all_faults
from deploy.installation import WORKERS, Installation, NotReached, wait_for
from deploy.judge import HEADER, Judge, Verdict
from deploy.kubectl import KubectlError

EXIT_NOT_BEGUN = 2

AFTER_S = 8
"""A fault is over so long after all pods are ready: then the shards have moved back for balance."""


def say(text: str) -> None:
    """One line, at once."""
    print(text, flush=True)


def run_faults(installation: Installation, judge: Judge, only: str) -> list[Verdict]:
    """Each fault in turn, with its row of the table."""
    everyone_works(installation, judge)
    say(HEADER)
    verdicts: list[Verdict] = []
    for fault in all_faults(installation):
        if verdicts and not re.search(only, fault.name):
            continue
        begun_ns = installation.now_ns()
        before = installation.events_until(begun_ns)
        note = fault.inject(installation)
        installation.wait_until_ready()
        time.sleep(AFTER_S)
        until_ns = installation.now_ns()
        during = installation.events_until(until_ns)
        verdict = judge.judge(fault.name, fault.bar_ms, before, during, until_ns, note)
        verdicts.append(verdict)
        say(verdict.row())
        for problem in verdict.problems:
            say(f"    {problem}")
        installation.wait_until_well()
    return verdicts


def everyone_works(installation: Installation, judge: Judge) -> None:
    """Waits until the groups have formed; those rebalances have their reason."""
    began_ns = installation.now_ns()

    def working() -> bool:
        judge.feed(installation.events_until(installation.now_ns()))
        return judge.active_since(began_ns) == WORKERS

    wait_for("all workers have commits acknowledged", working, 120)
    time.sleep(AFTER_S)
    judge.feed(installation.events_until(installation.now_ns()))


def main() -> int:
    """Exit code 0: everything held."""
    parser = argparse.ArgumentParser(prog="tests/deploy/e2e.sh", description=__doc__)
    parser.add_argument("--only", default="", metavar="PATTERN", help="faults whose name matches")
    parser.add_argument("--keep", action="store_true", help="leave the installation and the histories there")
    arguments = parser.parse_args()
    os.nice(5)  # this process must not take the processor from what it judges
    folder = Path(tempfile.mkdtemp(prefix="muster-e2e-"))
    installation = Installation(folder)
    judge = Judge(WORKERS)
    began = time.monotonic()
    try:
        if installation.is_there():
            say("e2e: the namespace muster-test is there already: kubectl delete namespace muster-test")
            return EXIT_NOT_BEGUN
        installation.install()
        say(f"installed in {time.monotonic() - began:.0f} s; {WORKERS} workers begin")
        installation.start_fleet()
        verdicts = run_faults(installation, judge, arguments.only)
        installation.stop_fleet()
        audits = [run_audit(installation, cronjob) for cronjob in CRONJOBS]
        for audit in audits:
            say(audit.text)
        if not arguments.keep:
            installation.uninstall()
            say("uninstalled")
    except (KubectlError, NotReached) as error:
        say(f"e2e: {error}")
        say(f"left as it is: namespace muster-test, histories in {folder}")
        return 1
    clean = all(audit.clean for audit in audits)
    faults = verdicts[1:]
    held = sum(not verdict.problems for verdict in faults)
    violations = sum(len(verdict.violations) for verdict in verdicts)
    good = held == len(faults) and not verdicts[0].problems and clean
    if good and not arguments.keep:
        shutil.rmtree(folder)
    say(
        f"{len(faults)} faults, {held} held; {judge.acknowledged} acknowledged commits, "
        f"{judge.compared} reads, {violations} lost or regressed; "
        f"{sum(one.rebalances for one in verdicts)} rebalances; "
        f"longest gap {max((one.gap_ms for one in faults), default=0)} ms (bar {BAR_MS}); "
        f"audit {'clean' if clean else 'NOT CLEAN'}; {(time.monotonic() - began) / 60:.1f} minutes"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
