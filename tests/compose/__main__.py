"""`./x compose`: the compose file for real. Up, a fleet at work, containers killed, log verified, down."""

import os
import sys
import time
from collections.abc import Callable

from compose.project import ComposeError, Project, docker_problem

GROUP, PARTITIONS, WORKERS = "crawlers", 12, 6
NODES = "redis://redis-1:6379,redis-2:6379,redis-3:6379"
VICTIMS = (
    "coordinator-1",
    "coordinator-2",
    "coordinator-3",
    "redis-1",
    "redis-2",
    "redis-3",
    "metadata-1",
    "metadata-2",
    "discovery-1",
    "discovery-2",
)
PATIENCE_S = 90.0


def say(text: str) -> None:
    """One line, at once."""
    print(text, flush=True)


class Failed(Exception):
    """Something is not as it must be; the message says what."""


def until(condition: Callable[[], bool], what: str) -> None:
    """Waits for a condition.

    Raises:
        Failed: it did not come true.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise Failed(f"not within {PATIENCE_S:g} s: {what}")
        time.sleep(0.2)


class Fleet:
    """The workers of the compose file, as seen from outside.

    Args:
        project: where they run.
    """

    def __init__(self, project: Project) -> None:
        self._project = project

    def offsets(self) -> dict[int, int]:
        """What is committed, by partition."""
        rows = self._project.inside("worker", "offsets", GROUP)
        return {row["number"]: row["offset"] for row in rows}

    def work_shared(self) -> bool:
        """Whether all workers are members, and every partition was committed."""
        group = self._project.inside("worker", "groups", "describe", GROUP)
        return (
            group["state"] == "GROUP_STATE_STABLE"
            and len(group["members"]) == WORKERS
            and len(self.offsets()) == PARTITIONS
        )

    def generation(self) -> int:
        """Number of the group's last rebalance."""
        return int(self._project.inside("worker", "groups", "describe", GROUP)["generation"])

    def beginnings(self) -> int:
        """How often a worker began with a partition; each time it prints a line.

        Without a rebalance it begins again only after it heard nothing from its coordinator for the whole
        `disconnect_grace_ms`, and gave up by itself: on a machine that is not overloaded it does not.
        """
        return self._project.run("logs", "--no-log-prefix", "worker").count("on from")

    def goes_on(self) -> None:
        """Waits until every partition was committed four times more.

        Raises:
            Failed: it was not, or an offset went back.
        """
        before = self.offsets()

        def grown() -> bool:
            now = self.offsets()
            back = [number for number in before if now.get(number, -1) < before[number]]
            if back:
                raise Failed(f"the offsets of partitions {back} went back: {before} → {now}")
            return all(now[number] >= before[number] + 4 for number in before)

        until(grown, "every partition is committed four times more")


def kill_each(project: Project, fleet: Fleet) -> None:
    """Kills one container after the other; each is started again after the fleet went on without it."""
    generation = fleet.generation()
    for victim in VICTIMS:
        began_s, beginnings = time.monotonic(), fleet.beginnings()
        project.run("kill", victim)
        fleet.goes_on()
        project.run("up", "--detach", "--no-build", "--no-deps", "--wait", victim)
        if fleet.generation() != generation:
            raise Failed(f"{victim} was killed: generation {generation} → {fleet.generation()}, a rebalance")
        again = fleet.beginnings() - beginnings
        noticed = f"workers began again with {again} partitions" if again else "nobody noticed"
        say(f"  {victim:<14} killed and started again, {noticed} ({time.monotonic() - began_s:.0f} s)")


def stopped_fleet_is_clean(project: Project) -> None:
    """The doctor finds nothing failed, and the log breaks no promise on any node."""

    def well() -> bool:
        told = project.run("run", "--rm", "--no-deps", "-T", "muster", "doctor", codes=(0, 1))
        return " failed" not in told.splitlines()[-1]

    until(well, "`muster doctor` finds nothing that failed")
    say("  muster doctor: nothing failed")
    project.run("stop", "worker")
    report = project.muster("verify", NODES)
    if not report["clean"] or report["nodes"] != 3 or report["unread_nodes"]:
        raise Failed(f"muster verify: {report}")
    say(f"  muster verify: {report['entries']} entries on {report['nodes']} nodes, clean")


def nothing_left(project: Project) -> None:
    """After `down`."""
    left = project.left()
    if left:
        raise Failed(f"down left {', '.join(left)}")
    say("  down, nothing left")


def main() -> int:
    """Entry point; exit code 0: all is well, 1: it is not, 2: there is no Docker engine."""
    problem = docker_problem()
    if problem:
        print(f"compose: {problem}", file=sys.stderr)
        return 2
    began_s = time.monotonic()
    name = f"muster-check-{os.getpid()}"
    try:
        with Project(name) as project:
            project.run("--profile", "fleet", "--profile", "tools", "build")
            say(f"built ({time.monotonic() - began_s:.0f} s)")
            project.run("--profile", "fleet", "up", "--detach", "--no-build", "--wait")
            say(f"up ({time.monotonic() - began_s:.0f} s)")
            fleet = Fleet(project)
            until(fleet.work_shared, f"{WORKERS} workers share {PARTITIONS} partitions")
            kill_each(project, fleet)
            stopped_fleet_is_clean(project)
        nothing_left(Project(name))
    except (ComposeError, Failed) as error:
        print(f"compose: {error}", file=sys.stderr)
        return 1
    took_s = time.monotonic() - began_s
    say(f"compose: {len(VICTIMS)} containers killed, no rebalance, log clean, {took_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
