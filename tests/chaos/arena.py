"""Where scenarios take place: one cluster under load, its nemesis, and what the histories say."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import muster
from chaos.audit import Noted, audit, installed
from chaos.checkers import Answers, Commits, Generations, Violation, all_checkers, check_log, check_sink
from chaos.history import Event, Histories, Recorder
from chaos.kinds import KINDS
from chaos.load import Load
from chaos.logs import Logs
from chaos.prober import TOPIC
from chaos.raw import Wire
from chaos.sink import accepted
from kit.clusters.linked_cluster import LinkedCluster, link_name
from kit.links import BOTH
from muster_coordinator.ownership.placement import place
from muster_protos.muster.v1 import discovery_pb2
from muster_server.dev.role_process import RoleProcess
from muster_server.verify.verifier import verify

WITHIN_SECONDS = 60.0
ON_ITS_WAY_NS = 1_000_000_000
WRITTEN_NS = 100_000_000


class NotHit(Exception):
    """The state that a scenario is about was not reached: it is tried again, and nothing is claimed."""


class Broken(Exception):
    """What a scenario promises did not happen."""


@dataclass
class Seen:
    """What members saw during a scenario.

    Attributes:
        recovery_ms: the longest that a commit took since the scenario began, or since its fault ended; those
            without an end included.
        rebalances: generations of the load's groups that began.
        lost: how often members gave partitions up by themselves.
        refused: writes that the sink refused for their token.
        commits: how many were acknowledged.
        unknown: how many ended without a known outcome.
    """

    recovery_ms: float = 0
    rebalances: int = 0
    lost: int = 0
    refused: int = 0
    commits: int = 0
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class Size:
    """How large the load is."""

    groups: int = 30
    members: int = 10
    processes: int = 4
    kinds: Sequence[str] = KINDS["both"]


class Arena:
    """One cluster with its load; an async context manager.

    Args:
        folder: everything that is written.
        size: of the load.
        say: prints progress.
        settings: further variables for the cluster's processes.
        trimmed: logs are trimmed, so that they do not have old commits any more.
        audited: the audit with Spark judges the log at the end, where Spark is in the environment.
    """

    def __init__(
        self,
        folder: Path,
        size: Size,
        say: Callable[[str], None],
        *,
        settings: dict[str, str] | None = None,
        trimmed: bool = False,
        audited: bool = True,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.say = say
        self.cluster = LinkedCluster(folder, settings=settings)
        self._trimmed = trimmed
        self._audited = audited
        self.load = Load(
            self.cluster,
            folder,
            groups=size.groups,
            members=size.members,
            processes=size.processes,
            kinds=size.kinds,
        )
        self.timeline: list[tuple[int, str]] = []
        self.violations: list[Violation] = []
        self._histories = Histories(self.load.histories)
        self._checkers: tuple[Commits, Generations, Answers] = all_checkers()
        self._noted = Noted()
        self.recent: list[Event] = []
        self._open: dict[str, Event] = {}
        self._took: list[tuple[int, int]] = []
        self._acknowledged: list[tuple[int, int]] = []
        self._at_begin: dict[str, int] = dict.fromkeys(self.load.groups, -1)
        self._begin_ns = 0
        self._seen = Seen()

    async def __aenter__(self) -> Self:
        await self.cluster.__aenter__()
        try:
            self.logs = Logs(self.cluster)
            self.client = muster.Cluster(self.cluster.servers)
            self.history = Recorder(self.load.histories / "scenario.jsonl", "scenario")
            for group in self.load.groups:
                await self.client.ensure_topic(group, self.load.members)
            await self.client.ensure_topic(TOPIC, 1)
            await self.load.__aenter__()
            await self.settled()
            await self.all_commit()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(Exception):
            await self.load.__aexit__()
        with suppress(Exception):
            await self.client.close()
        with suppress(Exception):
            await self.logs.close()
        await self.cluster.stop()

    def wire(self) -> Wire:
        """Connections for raw members."""
        return Wire(self.cluster.servers, self.history)

    # What is written down

    def note(self, text: str) -> None:
        """One line of the timeline."""
        self.timeline.append((time.monotonic_ns(), text))

    def expect(self, holds: bool, text: str) -> None:
        """A promise of the scenario.

        Raises:
            Broken: it does not hold.
        """
        if not holds:
            raise Broken(text)

    def follow(self) -> None:
        """Takes in what the processes have written until now."""
        for event in self._histories.until(time.monotonic_ns() - WRITTEN_NS):
            self.recent.append(event)
            self.load.see(event)
            self._follow(event)
            self._noted.feed(event)
            for checker in self._checkers:
                before = len(checker.violations)
                checker.feed(event)
                self.violations += checker.violations[before:]

    def _follow(self, event: Event) -> None:
        if event["e"] == "invoke" and event["f"] == "commit" and event["g"] in self._at_begin:
            self._open[event["op"]] = event
        elif event["e"] in ("ok", "info", "fail") and event["op"] in self._open:
            begun = self._open.pop(event["op"])
            if event["e"] == "ok":
                self._acknowledged.append((begun["t"], event["t"]))
            if event["t"] >= self._begin_ns:
                self._took.append((begun["t"], event["t"]))
                self._seen.commits += event["e"] == "ok"
                self._seen.unknown += event["e"] == "info"
        elif event["e"] == "note" and event["f"] == "assigned" and event["t"] >= self._begin_ns:
            if 0 <= self._at_begin.get(event["g"], -1) < event["gen"]:
                self._seen.rebalances += 1
                self.timeline.append((event["t"], f"{event['g']} is in generation {event['gen']}"))
                self._at_begin[event["g"]] = event["gen"]
        elif event["e"] == "note" and event["f"] in ("lost", "refused") and event["t"] >= self._begin_ns:
            if event["f"] == "lost":
                self._seen.lost += 1
            else:
                self._seen.refused += 1
            if self._seen.lost + self._seen.refused <= 3:
                self.timeline.append((event["t"], f"{event['f']}: {event['s']}"))

    def begin(self) -> None:
        """A scenario begins."""
        self.follow()
        self.timeline, self.violations, self._took, self._acknowledged, self.recent = [], [], [], [], []
        self._seen = Seen()
        self._at_begin = {group: self._checkers[1].newest.get(group, -1) for group in self.load.groups}
        self._begin_ns = time.monotonic_ns()

    def measured_from_now(self) -> None:
        """What a commit takes is measured from here on."""
        self.follow()
        self._took = []
        self._begin_ns = time.monotonic_ns()

    def fault_ended(self) -> None:
        """The same, because the fault itself lasted longer than what a commit may take."""
        self.measured_from_now()
        self.note("the fault is over")

    def acknowledged_between(self, begin_ns: int, end_ns: int) -> int:
        """How many commits of the load were acknowledged in a span of time.

        On a busy machine an answer from before it may be read for a second after its beginning: that counts
        only where its commit was asked for in the span, too.
        """
        self.follow()
        return sum(
            answered < end_ns and (begin_ns < asked or begin_ns + ON_ITS_WAY_NS < answered)
            for asked, answered in self._acknowledged
        )

    def seen(self) -> Seen:
        """What members saw since `begin`."""
        self.follow()
        now_ns = time.monotonic_ns()
        ends = [end - max(begin, self._begin_ns) for begin, end in self._took]
        waiting = [now_ns - WRITTEN_NS - max(event["t"], self._begin_ns) for event in self._open.values()]
        self._seen.recovery_ms = max([*ends, *waiting], default=0) / 1e6
        return self._seen

    # Waiting

    async def until(
        self, condition: Callable[[], bool | Awaitable[bool]], what: str, seconds: float = WITHIN_SECONDS
    ) -> None:
        """Waits for something.

        Raises:
            Broken: it did not come in time.
        """
        deadline = time.monotonic() + seconds
        while True:
            holds = condition()
            if not isinstance(holds, bool):
                holds = await holds
            if holds:
                return
            if time.monotonic() > deadline:
                raise Broken(f"not within {seconds:g} s: {what}")
            await asyncio.sleep(0.02)

    async def all_commit(self, seconds: float = WITHIN_SECONDS) -> None:
        """Waits until every member had a commit acknowledged that ended from now on."""
        since_ns = time.monotonic_ns()
        deadline = time.monotonic() + seconds
        while True:
            await asyncio.sleep(0.2)
            self.follow()
            silent = [slot for slot, at in self.load.last_ok_ns.items() if at <= since_ns]
            if not silent:
                return
            if time.monotonic() > deadline:
                text = f"{len(silent)} members do not commit within {seconds:g} s, e.g. {silent[:5]}"
                raise Broken(text)

    async def settled(self, seconds: float = WITHIN_SECONDS) -> None:
        """Waits until every coordinator lives and every shard is served."""

        async def all_served() -> bool:
            view = await self.client.describe()
            living = {n.node_id for n in view.coordinators if n.state == discovery_pb2.COORDINATOR_STATE_LIVE}
            return len(living) == len(self.cluster.coordinators) and all(
                row.serving and row.node_id in living for row in view.shards
            )

        await self.until(all_served, "all shards are served", seconds)

    async def balanced(self) -> None:
        """Waits until every shard is where it shall be: none moves by itself any more."""
        wanted = place([process.name for process in self.cluster.coordinators], self.cluster.shard_count)

        async def at_home() -> bool:
            view = await self.client.describe()
            return {row.shard: row.node_id for row in view.shards if row.serving} == wanted

        await self.until(at_home, "every shard is where it shall be")

    async def repaired(self, seconds: float = WITHIN_SECONDS) -> None:
        """Waits until every node has every shard's log up to about its end, and votes on it."""

        async def caught_up() -> bool:
            for index in range(1, len(self.cluster.nodes) + 1):
                if not await self.logs.votes(index):
                    return False
            for shard in range(self.cluster.shard_count):
                ends = [await self.logs.end(index, shard) for index in range(1, len(self.cluster.nodes) + 1)]
                most = max(ends)
                if any(end.epoch < most.epoch or end.offset + 20 < most.offset for end in ends):
                    return False
            return True

        async def tried() -> bool:
            try:
                return await caught_up()
            except Exception:
                return False

        await self.until(tried, "all nodes have everything", seconds)

    # Who is who

    async def owner(self, group: str) -> RoleProcess:
        """The coordinator that serves a group."""
        shard = self.logs.shard(group)
        found: list[str] = []

        async def served() -> bool:
            view = await self.client.describe()
            found[:] = [row.node_id for row in view.shards if row.shard == shard and row.serving]
            return bool(found and found[0])

        await self.until(served, f"somebody serves {group}")
        return self.cluster.role(found[0])

    async def epoch(self, group: str) -> int:
        """The epoch in which a group is served."""
        shard = self.logs.shard(group)
        view = await self.client.describe()
        return next(row.shard_epoch for row in view.shards if row.shard == shard)

    async def shares(self) -> dict[str, int]:
        """How many shards each coordinator serves."""
        shares: dict[str, int] = {}
        for row in (await self.client.describe()).shards:
            if row.serving:
                shares[row.node_id] = shares.get(row.node_id, 0) + 1
        return shares

    async def busiest(self) -> RoleProcess:
        """The coordinator that serves most shards."""
        shares = await self.shares()
        return self.cluster.role(max(shares, key=lambda name: (shares[name], name)))

    async def epochs(self) -> dict[int, tuple[str, int]]:
        """Owner and epoch of every shard."""
        return {row.shard: (row.node_id, row.shard_epoch) for row in (await self.client.describe()).shards}

    @property
    def metadata(self) -> list[str]:
        """Names of the metadata instances."""
        return [process.name for process in self.cluster.metadata]

    def said(self, name: str, event: str) -> list[dict[str, Any]]:
        """What a process logged under a name of an event."""
        path = self.cluster.folder / "logs" / f"{name}.log"
        lines = [line for line in path.read_text().splitlines() if f'"{event}"' in line]
        return [json.loads(line) for line in lines if line.startswith("{")]

    # The nemesis

    async def kill(self, *names: str) -> None:
        """SIGKILL, all at once."""
        self.note(f"kill -9 {' '.join(names)}")
        await asyncio.gather(*(self.cluster.children[name].kill() for name in names))

    def pause(self, *names: str) -> None:
        """SIGSTOP."""
        self.note(f"SIGSTOP {' '.join(names)}")
        for name in names:
            if name.startswith("coordinator"):
                self.history.note("silenced", node=name)
            self.cluster.children[name].pause()

    def resume(self, *names: str) -> None:
        """SIGCONT."""
        self.note(f"SIGCONT {' '.join(names)}")
        for name in names:
            if name.startswith("coordinator"):
                self.history.note("heard", node=name)
            self.cluster.children[name].resume()

    async def start(self, *names: str) -> None:
        """Starts processes that ended."""
        self.note(f"start {' '.join(names)}")
        nodes = {node.process.name: node for node in self.cluster.nodes}
        await asyncio.gather(
            *((nodes[name] if name in nodes else self.cluster.role(name)).start() for name in names)
        )

    async def cut(self, source: str, targets: Sequence[str], directions: Sequence[str] = BOTH) -> None:
        """Holds what goes between a process and others."""
        self.note(f"cut {source} – {', '.join(targets)} ({', '.join(directions)})")
        for target in targets:
            await self.cluster.links.hold(link_name(source, target), directions)

    async def mend(self, source: str, targets: Sequence[str]) -> None:
        """Lets it pass again."""
        self.note(f"mend {source} – {', '.join(targets)}")
        for target in targets:
            await self.cluster.links.release(link_name(source, target))

    async def heal(self) -> None:
        """Takes every fault away and waits until all is as it was: a scenario may begin."""
        names = [process.name for process in self.cluster.metadata]
        for name, child in self.cluster.children.items():
            if child.running:
                child.resume()
            if name.startswith("coordinator"):
                self.history.note("heard", node=name)
        for name in names:
            for index in range(1, len(self.cluster.nodes) + 1):
                await self.cluster.links.release(link_name(name, f"redis-{index}"))
            for process in (*self.cluster.discovery, *self.cluster.coordinators):
                await self.cluster.links.release(link_name(process.name, name))
        await self.cluster.nodes.start()
        down = [process.name for process in self.cluster.roles if not process.process.running]
        if down:
            await self.start(*down)
        await self.settled()
        await self.repaired()
        await self.all_commit()

    async def read_back(self, group: str, partitions: list[int]) -> None:
        """Asks what a group has committed; the answer goes into the history, for the checkers."""
        operation = self.history.invoke("fetch", g=group, ps=partitions)
        found = await self.client.committed(group)
        values = {str(partition.number): at.offset for partition, at in found.items()}
        self.history.end("ok", operation, vs=values)

    # At the end of a cluster's life

    async def final_checks(self) -> list[Violation]:
        """Reads everything back, compares log, sink and histories, and runs the verifier."""
        self.violations = []
        await self.load.end()
        self.follow()
        committed = self._checkers[0].highest
        for group in sorted({group for group, _ in committed}):
            await self.read_back(group, [partition for other, partition in committed if other == group])
        await self.repaired()
        await asyncio.sleep(1.5)  # the acknowledged position follows within a second
        self.follow()
        violations = list(self.violations)
        commits = self._checkers[0]
        places = await self.logs.commits(sorted({group for group, _ in commits.acknowledged}))
        logged: dict[tuple[str, int], list[tuple[int, str]]] = {}
        for one in places:
            logged.setdefault((one.group_id, one.partition), []).append((one.value, one.member_id))
        violations += check_log(commits.acknowledged, logged, trimmed=self._trimmed)
        violations += check_sink(await asyncio.to_thread(lambda: list(accepted(self.load.sink.url))))
        report = await asyncio.to_thread(verify, self.cluster.redis_url)
        violations += [
            Violation(one.violation.invariant, 0, f"{one.log}: {one.violation.detail}")
            for one in report.evidence
        ]
        told = "no audit with Spark"
        if self._audited and not installed():
            told += ": it is not in the environment (`./x audit` adds it)"
        elif self._audited:
            folder = self.load.histories.parent / "audit"
            found, told = await audit(self.cluster.redis_url, folder, self._noted, places)
            violations += found
        acknowledged = sum(len(values) for values in commits.acknowledged.values())
        self.say(
            f"  checked: {acknowledged} acknowledged commits, {commits.checked} reads, "
            f"{self._checkers[1].checked} assignments, {self._checkers[2].checked} answers with an epoch, "
            f"{report.entries} log entries of {report.logs} logs on {report.nodes} nodes"
        )
        self.say(f"  {told}")
        self.acknowledged = acknowledged
        self.entries = report.entries
        return violations
