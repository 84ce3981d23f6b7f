"""One seed: a cluster, its faults, the time after them, and the verdict."""

import gc
import itertools
import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from simulation import processes
from simulation.cluster import GROUPS, SERVERS, Cluster
from simulation.dump import dump as write_dump
from simulation.judge import Judge
from simulation.ledger import Ledger
from simulation.nemesis import MEMBERS, Nemesis
from simulation.observer import Observer
from simulation.owners import Owners
from simulation.processes import Process
from simulation.repairs import Repairs
from simulation.violations import Violation, Violations
from simulation.worker import CLASSIC, INCREMENTAL, own_process_ids
from simulation.world import World

SETTLE_S = 45.0
"""After the last fault every group is whole again within this time."""

REST_S = 5.0
"""How long nothing is committed before the verdict."""

GENERATIONS_MAX = 3
"""Most generations that a group may need after the last fault."""

EPOCHS_MAX = 3 * MEMBERS
"""The same for epochs of a group that is, or may be, incremental: each member that comes or is removed raises
it."""

DELIVERED_MIN = 2_000
"""A run that delivers fewer messages proves nothing."""

PACE_S = (6.0, 14.0)

_REPORTED = frozenset({"log_node_refuses", "lease_superseded", "wall_clock_wrong", "log_waits_for_a_node"})
"""Errors that the servers are right to report."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a seed."""

    seed: int
    trace_hash: str
    delivered: int
    steps: int
    commits: int
    generations: int
    conversions: int
    reversions: int
    faults: dict[str, int]
    checked: Counter[str]
    violations: list[Violation]
    settled_s: float
    idle_repairs: int
    cpu_s: float

    @property
    def good(self) -> bool:
        """Whether every invariant held."""
        return not self.violations


class _Reporter:
    """Takes what servers and clients log: an error that nobody expects is a violation."""

    def __init__(self, world: World, violations: Violations, observer: Observer) -> None:
        self._world = world
        self._violations = violations
        self._observer = observer

    def structlog(self, _: Any, level: str, event: MutableMapping[str, Any]) -> Any:
        """A processor that ends the chain."""
        name = str(event.get("event"))
        clock = self._world.clock
        who = clock.name if isinstance(clock, Process) else "?"
        if name == "coordinator_died":
            self._observer.excused[str(event["node_id"])] = self._world.now_s
        if level in ("error", "exception", "critical") and name not in _REPORTED:
            self._violations.expect("X1", False, f"{who} reports {name}: {_fields(event)}")
        if self._world.tell is not None:
            self._world.tell(f"{self._world.now_s:.6f} [{who}] {level} {name} {_fields(event)}")
        raise structlog.DropEvent

    def unforeseen(self, name: str, context: dict[str, Any]) -> None:
        """An error of a loop that nobody caught."""
        error = context.get("exception")
        if error is None and "destroyed" in str(context.get("message")):
            return
        text = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
        self._violations.expect("X1", False, f"{name}: {context.get('message')} {text}")


def _fields(event: MutableMapping[str, Any]) -> str:
    told = {key: value for key, value in event.items() if key not in ("event", "exc_info")}
    error = event.get("exc_info")
    if error is True:
        return f"{told} {traceback.format_exc()}"
    if isinstance(error, BaseException):
        return f"{told} {''.join(traceback.format_exception(error))}"
    return str(told)


class _ClientLog(logging.Handler):
    def __init__(self, world: World, violations: Violations) -> None:
        super().__init__()
        self._world = world
        self._violations = violations

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.ERROR:
            trace = "".join(traceback.format_exception(record.exc_info[1])) if record.exc_info else ""
            self._violations.expect("X1", False, f"{record.name}: {text} {trace}")
        if self._world.tell is not None:
            self._world.tell(f"{self._world.now_s:.6f} [{record.name}] {text}")


def run_seed(
    seed: int,
    minutes: float = 5.0,
    tell: Callable[[str], None] | None = None,
    dump: Path | None = None,
    *,
    changing: bool = False,
) -> Outcome:
    """Runs one seed.

    It belongs into a process of its own: what is left of the simulated processes must not run any more.

    Args:
        seed: decides everything.
        minutes: virtual minutes.
        tell: takes the trace, line by line.
        dump: folder for what is left in the end (`simulation.dump`).
        changing: whether every group changes its kind.
    """
    began_s = time.process_time()
    world = World(seed)
    world.tell = tell
    violations = Violations(world)
    ledger = Ledger(violations)
    observer = Observer(ledger, violations)
    reporter = _Reporter(world, violations, observer)
    level = logging.DEBUG if tell is not None else logging.INFO
    structlog.configure(
        processors=[reporter.structlog], wrapper_class=structlog.make_filtering_bound_logger(level)
    )
    for name in ("muster", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [_ClientLog(world, violations)]
        logger.propagate = False
        logger.setLevel(level if tell is not None else logging.ERROR)
    processes.number_from(itertools.count())
    gc.disable()
    with world.ruling(), processes.taking_turns(), own_process_ids(world):
        skew = world.random.choice((0, 0.02, 0.1))
        owners = Owners(world, violations, skew)
        cluster = Cluster(world, ledger.written, reporter.unforeseen, observer, owners, skew)
        ledger.nodes = cluster.nodes
        ledger.departed = observer.departed
        observer.coordinators = cluster.servers
        nemesis = Nemesis(cluster, ledger, PACE_S, changing=changing)
        judge = Judge(cluster, ledger, observer, violations)
        repairs = Repairs(cluster, violations)
        settled_s = _live(world, cluster, nemesis, judge, ledger, repairs, violations, minutes * 60)
    if dump is not None:
        write_dump(cluster, ledger, dump)
    violations.expect(
        "X2",
        cluster.network.delivered >= DELIVERED_MIN,
        f"only {cluster.network.delivered} messages were delivered",
    )
    return Outcome(
        seed=seed,
        trace_hash=world.trace_hash,
        delivered=cluster.network.delivered,
        steps=world.steps,
        commits=sum(commit.outcome == "ok" for commit in cluster.history.commits.values()),
        generations=len(ledger.began),
        conversions=sum(len(ledger.became(group_id, INCREMENTAL)) for group_id in GROUPS),
        reversions=sum(len(ledger.became(group_id, CLASSIC)) for group_id in GROUPS),
        faults=nemesis.injected,
        checked=violations.checked,
        violations=violations.found,
        settled_s=settled_s,
        idle_repairs=repairs.most_idle,
        cpu_s=time.process_time() - began_s,
    )


def _live(
    world: World,
    cluster: Cluster,
    nemesis: Nemesis,
    judge: Judge,
    ledger: Ledger,
    repairs: Repairs,
    violations: Violations,
    length_s: float,
) -> float:
    cluster.initialise()
    ledger.initialised = True
    for name in SERVERS:
        cluster.start(name)
    world.run(world.now_s + 2)
    for group_id in GROUPS:
        for _ in range(MEMBERS):
            nemesis.hire(group_id)
    faults_end_s = max(length_s - SETTLE_S - REST_S - 2, 20.0)
    nemesis.start(faults_end_s)
    while world.now_s < faults_end_s and not violations.found:
        world.run(min(world.now_s + 5, faults_end_s))
        repairs.look()
    if violations.found:
        return 0.0
    world.run(faults_end_s + 1.5)
    nemesis.heal()
    settled_s = _settle(world, nemesis, judge, ledger, violations)
    for worker in cluster.workers:
        worker.busy.clear()
    world.run(world.now_s + REST_S)
    repairs.look()
    if not violations.found:
        judge.judge()
    return settled_s


def _generation(ledger: Ledger, group_id: str) -> int:
    return max((generation for group, generation in ledger.generations if group == group_id), default=0)


def _settle(world: World, nemesis: Nemesis, judge: Judge, ledger: Ledger, violations: Violations) -> float:
    """Waits until every group is whole, and stays so; gives how long it took."""
    began_s = world.now_s
    before = {group_id: _generation(ledger, group_id) for group_id in GROUPS}
    calm_since_s: float | None = None
    settled_s = -1.0
    while world.now_s < began_s + SETTLE_S and not violations.found:
        world.run(world.now_s + 0.5)
        nemesis.replace_failed()
        if judge.unsettled():
            calm_since_s = None
        elif calm_since_s is None:
            calm_since_s = world.now_s
            settled_s = world.now_s - began_s
        elif world.now_s - calm_since_s > 12:
            break
    violations.expect(
        "V1",
        calm_since_s is not None,
        f"{SETTLE_S:g} s after the last fault: {'; '.join(judge.unsettled())}",
    )
    for group_id in GROUPS:
        more = _generation(ledger, group_id) - before[group_id]
        most = GENERATIONS_MAX if nemesis.kinds[group_id] == CLASSIC else EPOCHS_MAX
        violations.expect("V5", more <= most, f"{group_id} needed {more} generations after the last fault")
    return settled_s
