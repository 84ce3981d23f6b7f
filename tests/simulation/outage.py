"""`python -m simulation.outage`: the log is away for less than a session, again and again.

No member may stop its work, no token may change and no generation may begin. One machine sleeps meanwhile;
its member may lose its partitions for that, and must have them back without a rebalance.
"""

import argparse
import itertools
import logging
import os
import sys
from typing import Any

import structlog
from muster import MemberSettings
from simulation import processes
from simulation.cluster import GROUPS, SERVERS, Cluster
from simulation.ledger import Ledger
from simulation.observer import Observer
from simulation.owners import Owners
from simulation.violations import Violations
from simulation.worker import Worker, own_process_ids
from simulation.world import World

MEMBERS = 4
OUTAGES = 4
OUTAGE_S, CALM_S = 8.0, 12.0
"""Longer than a grace, shorter than a session and a rebalance time-out (INC-47); and what members need to
have committed in between."""

SETTLE_S = 40
"""Within which every member has work."""

PACE_S = (0.2, 0.8)
SETTINGS = MemberSettings(
    session_timeout_ms=10_000,
    beat_interval_ms=500,
    disconnect_grace_ms=3_000,
    rebalance_timeout_ms=10_000,
    request_timeout_ms=5_000,
)


class _Outages:
    """A cluster at work, and what its members had when it began."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.violations = Violations(self.world)
        self.ledger = Ledger(self.violations)
        observer = Observer(self.ledger, self.violations)
        owners = Owners(self.world, self.violations, 0.0005)
        self.cluster = Cluster(self.world, self.ledger.written, self._unforeseen, observer, owners, 0.0005)
        self.ledger.nodes = self.cluster.nodes
        self.ledger.departed = observer.departed
        observer.coordinators = self.cluster.servers

    def _unforeseen(self, name: str, context: dict[str, Any]) -> None:
        if context.get("exception") is not None:
            self.violations.expect("X1", False, f"{name}: {context}")

    def run(self, count: int) -> int:
        """Lives through so many outages; returns how often the sleeper lost its partitions."""
        world, cluster = self.world, self.cluster
        cluster.initialise()
        self.ledger.initialised = True
        for name in SERVERS:
            cluster.start(name)
        world.run(world.now_s + 2)
        for group_id, _ in itertools.product(GROUPS, range(MEMBERS)):
            cluster.hire(group_id, PACE_S, SETTINGS)
        for _ in range(SETTLE_S):
            world.run(world.now_s + 1)
            if all(map(self._held, cluster.workers)):
                break
        world.run(world.now_s + CALM_S)
        held = {worker: self._held(worker) for worker in cluster.workers}
        self.violations.expect("V1", all(held.values()), "not every member has work before the outages")
        generations = len(self.ledger.began)
        sleeper, *others = cluster.workers
        for number in range(count):
            self._outage(sleeper if number % 2 else None)
        for worker in others:
            self.violations.expect(
                "V6",
                self._held(worker) == held[worker] and not worker.losses,
                f"{worker.process.name} stopped its work {worker.losses} times while the log was away",
            )
        self.violations.expect("V6", self._held(sleeper) == held[sleeper], "the sleeper has other partitions")
        began = len(self.ledger.began) - generations
        self.violations.expect("V6", began == 0, f"{began} generations began")
        return sleeper.losses

    def _outage(self, sleeper: Worker | None) -> None:
        world = self.world
        stopped = world.random.sample(self.cluster.nodes, 2)
        for node in stopped:
            node.stop()
        if sleeper is not None:
            world.run(world.now_s + 0.5)
            sleeper.process.sleep()
            world.after(OUTAGE_S / 2, sleeper.process.resume)
        world.run(world.now_s + OUTAGE_S)
        for node in stopped:
            node.resume()
        world.run(world.now_s + CALM_S)

    @staticmethod
    def _held(worker: Worker) -> dict[int, str]:
        """The partitions of a member, with their tokens."""
        member = worker.member
        return {} if member is None else {p.number: member.token(p) for p in member.partitions}


def _quiet(_: Any, __: str, ___: Any) -> Any:
    raise structlog.DropEvent


def main() -> int:
    """Exit code 0: all held."""
    parser = argparse.ArgumentParser(prog="python -m simulation.outage", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--outages", type=int, default=OUTAGES, help="in every second one a machine sleeps")
    options = parser.parse_args()
    seed, count = options.seed, options.outages
    structlog.configure(processors=[_quiet])
    logging.getLogger("muster").setLevel(logging.CRITICAL)
    processes.number_from(itertools.count())
    outages = _Outages(seed)
    with outages.world.ruling(), processes.taking_turns(), own_process_ids(outages.world):
        losses = outages.run(count)
    for violation in outages.violations.found:
        print(violation)
    commits = sum(commit.outcome == "ok" for commit in outages.cluster.history.commits.values())
    print(
        f"seed {seed}: {count} outages of {OUTAGE_S:g} s, {commits} commits, "
        f"{len(outages.violations.found)} violations; the sleeper lost its partitions {losses} times"
    )
    return 1 if outages.violations.found else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # what is left of the simulated processes must not run any more
