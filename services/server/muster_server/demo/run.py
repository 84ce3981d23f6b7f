"""Runs the demo: sets up a cluster, kills processes, measures, compares."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import muster
from muster_core.sharding import shard_of
from muster_runtime.clock import boot_ms

from muster_server.child_process import ChildProcess
from muster_server.demo.progress import Gate, Progress
from muster_server.demo.show import Show
from muster_server.demo.text import count_words, read_lines
from muster_server.demo.worker import GRACE_MS
from muster_server.demo.workload import Store, collect, spread_lines
from muster_server.dev.cluster import DevCluster
from muster_server.dev.redis_nodes import RedisNode
from muster_server.verify.command import show as show_report
from muster_server.verify.verifier import verify

PARTITIONS = 12
WORKERS = 6
GROUP = "word-count"
TOPIC = "lines"
_RECOVERY_SECONDS = 30.0
_GAP_MS = 3_000


class DemoError(Exception):
    """The demo did not show what it should; the message says what."""


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """How long and how much.

    Attributes:
        seconds: how long the work would be stretched; after the last disturbance it runs free.
        text_bytes: how much of the default text.
        calm_seconds: undisturbed work before each kill.
    """

    seconds: float
    text_bytes: int
    calm_seconds: float


FULL_PLAN = DemoPlan(seconds=120.0, text_bytes=5_000_000, calm_seconds=5.0)
FAST_PLAN = DemoPlan(seconds=45.0, text_bytes=1_500_000, calm_seconds=1.0)


class Demo:
    """One run.

    Args:
        folder: data and logs.
        plan: how long and how much.
        input_folder: text of your own.
        show: prints what happens.
        audit: whether the Spark audit of the log ends it.
    """

    def __init__(
        self, folder: Path, plan: DemoPlan, input_folder: Path | None, show: Show, *, audit: bool = False
    ) -> None:
        self._folder = folder
        self._plan = plan
        self._input = input_folder
        self._show = show
        self._audit = audit
        self._workload = RedisNode(folder / "workload")
        self._cluster = DevCluster(
            folder / "cluster",
            redis_nodes=3,
            settings={"MUSTER_GROUP_INITIAL_REBALANCE_DELAY_MS": "1000"},
        )
        self._workers: dict[str, ChildProcess] = {}

    async def run(self) -> bool:
        """Runs the demo; returns whether every check passed."""
        lines = read_lines(self._input, self._plan.text_bytes)
        size = sum(len(line) for line in lines)
        self._show.say(f"{len(lines)} lines of real text, {size / 1e6:.1f} MB")
        store = Store(self._workload.url)
        try:
            await asyncio.gather(self._workload.start(), self._cluster.start())
            self._tell_cluster()
            sizes = spread_lines(self._workload.url, lines, PARTITIONS)
            progress = Progress(store, sizes)
            async with muster.Cluster(self._cluster.servers) as connection:
                await self._work(progress, connection)
                history = await connection.group_history(GROUP, 100)
                await self._end_workers()
            equal = self._compare(lines)
            report = verify(self._cluster.redis_url)
            self._show.console.print()
            show_report(report, self._show.console)
            self._show.timeline(GROUP, history)
            return equal and report.clean and (not self._audit or await self._audited())
        finally:
            self._show.end()
            await store.close()
            await asyncio.gather(*(worker.kill() for worker in self._workers.values()))
            await self._cluster.stop()
            await self._workload.stop()

    async def _audited(self) -> bool:
        """Runs the Spark audit on the logs of all nodes, in a process of its own."""
        self._show.say("the Spark audit reads the log of all nodes")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "muster_audit", "check", self._cluster.redis_url, "--nodes", "all"
        )
        return await process.wait() == 0

    def _tell_cluster(self) -> None:
        assert self._cluster.nodes is not None
        self._show.say(
            f"cluster is up: discovery at {self._cluster.servers}, one metadata, "
            f"{len(self._cluster.coordinators)} coordinators, {len(self._cluster.nodes)} Redis nodes"
        )

    # -- the work -----------------------------------------------------------------------------------

    async def _work(self, progress: Progress, connection: muster.Cluster) -> None:
        gate = Gate(progress.store, self._plan.seconds)
        background = [asyncio.create_task(progress.follow())]
        try:
            self._start_workers()
            await self._wait(
                progress, lambda: len(progress.owners) == PARTITIONS, "all partitions have an owner"
            )
            gate.started_ms = boot_ms()
            self._show.say(f"{WORKERS} workers share {PARTITIONS} partitions; the count begins")
            self._show.begin(progress.total)
            background += [asyncio.create_task(gate.run()), asyncio.create_task(self._tick(progress))]
            for disturbance in (
                self._kill_coordinator,
                self._kill_worker,
                self._come_and_go,
                self._kill_redis_node,
                self._stop_coordinator,
            ):
                await self._calm(progress)
                await disturbance(progress, connection)
            gate.release()
            await self._wait(progress, lambda: progress.finished, "every line is counted", 60.0)
            self._show.end()
            self._show.say(f"all {progress.total} lines are counted, {len(progress.commits)} commits")
        finally:
            gate.ended = progress.ended = True
            await asyncio.gather(*background)

    def _start_workers(self) -> None:
        for index in range(1, WORKERS + 1):
            self._start_worker(f"worker-{index}")

    def _start_worker(self, name: str) -> None:
        arguments = [name, self._cluster.servers, self._workload.url, GROUP, TOPIC, str(PARTITIONS), "auto"]
        worker = ChildProcess(
            name,
            [sys.executable, "-m", "muster_server.demo.worker", *arguments],
            self._folder / "logs" / f"{name}.log",
            removed=("MUSTER_",),
        )
        worker.start()
        self._workers[name] = worker

    async def _end_workers(self) -> None:
        await asyncio.gather(*(worker.terminate() for worker in self._workers.values()))

    async def _tick(self, progress: Progress) -> None:
        while not progress.ended:
            self._show.progress(progress.done, len(progress.commits))
            await asyncio.sleep(0.2)

    async def _calm(self, progress: Progress) -> None:
        """Undisturbed work, and all partitions moving."""
        await asyncio.sleep(self._plan.calm_seconds)
        since = boot_ms()
        await self._wait(
            progress,
            lambda: len({c.partition for c in progress.commits if c.sent_ms >= since}) == PARTITIONS,
            "commits in every partition",
        )

    async def _wait(
        self,
        progress: Progress,
        condition: Callable[[], bool],
        what: str,
        seconds: float = _RECOVERY_SECONDS,
    ) -> None:
        if not await progress.until(condition, seconds):
            raise DemoError(f"not within {seconds:g} s: {what}; see the logs in {self._folder}")

    # -- the disturbances ---------------------------------------------------------------------------

    async def _owner(self, connection: muster.Cluster) -> str:
        cluster = await connection.describe()
        shard = shard_of(GROUP, cluster.shard_count)
        return next(owner.node_id for owner in cluster.shards if owner.shard == shard)

    async def _generation(self, connection: muster.Cluster) -> int:
        return (await connection.describe_group(GROUP)).generation

    async def _kill_coordinator(self, progress: Progress, connection: muster.Cluster) -> None:
        name, before = await self._owner(connection), await self._generation(connection)
        self._show.say(f"SIGKILL {name}, the coordinator that owns the group", "bold yellow")
        await self._cluster.coordinator(name).kill()
        killed_ms = boot_ms()
        await self._wait(progress, lambda: progress.first_commit_after(killed_ms) is not None, "a commit")
        first = progress.first_commit_after(killed_ms)
        assert first is not None
        owner = await self._owner(connection)
        self._show.say(
            f"  commits go on {first.at_ms - killed_ms} ms after the kill, now at {owner}", "green"
        )
        await self._same_generation(connection, before)

    async def _kill_worker(self, progress: Progress, _connection: muster.Cluster) -> None:
        name = min(self._workers, key=lambda worker: (-len(progress.partitions_of(worker)), worker))
        owned = progress.partitions_of(name)
        self._show.say(
            f"SIGKILL {name}, which works on {len(owned)} partitions {sorted(owned)} "
            f"(the group waits {GRACE_MS / 1000:g} s for it)",
            "bold yellow",
        )
        await self._workers.pop(name).kill()
        killed_ms = boot_ms()
        await self._wait(
            progress, lambda: progress.taken_over_ms(owned, name, killed_ms) is not None, "others take over"
        )
        taken_ms = progress.taken_over_ms(owned, name, killed_ms)
        assert taken_ms is not None
        self._show.say(
            f"  others work on all its partitions {(taken_ms - killed_ms) / 1000:.1f} s after the kill",
            "green",
        )

    async def _come_and_go(self, progress: Progress, _connection: muster.Cluster) -> None:
        others, name, since_ms = len(self._workers), f"worker-{WORKERS + 1}", boot_ms()
        share = PARTITIONS // (others + 1)
        self._show.say(f"{name} is started beside {others} workers, and ends a little later", "bold yellow")
        self._start_worker(name)
        await self._wait(
            progress, lambda: len(progress.partitions_of(name)) >= share, "the new one has a share"
        )
        taken = progress.partitions_of(name)
        await self._workers.pop(name).terminate()
        await self._wait(progress, lambda: not progress.partitions_of(name), "others have its share again")
        await asyncio.sleep(0.5)  # whoever had to begin anew has said so by then
        starts = progress.starts_since(since_ms)
        movers = {who for s in starts if s.before != s.worker for who in (s.before, s.worker)} - {name}
        noticed = {start.worker for start in starts} - movers - {name}
        again = sorted({start.partition for start in starts if start.worker == start.before})
        self._show.say(
            f"  it worked on {len(taken)} partitions, which {len(movers)} workers gave or took; "
            f"{len(noticed)} of the {others - len(movers)} others noticed",
            "green",
        )
        if again:
            raise DemoError(f"work on partitions {again} was interrupted, though they stayed where they were")

    async def _kill_redis_node(self, progress: Progress, connection: muster.Cluster) -> None:
        assert self._cluster.nodes is not None
        before = await self._generation(connection)
        node = self._cluster.nodes[0]
        self._show.say("SIGKILL Redis node 1 of 3, which holds a copy of the log", "bold yellow")
        usual = progress.longest_gap_ms(boot_ms() - _GAP_MS // 2, boot_ms())
        await node.kill()
        killed_ms = boot_ms()
        await asyncio.sleep(_GAP_MS / 1000)
        gap = progress.longest_gap_ms(killed_ms, boot_ms())
        self._show.say(f"  longest pause between commits {gap} ms (before the kill: {usual} ms)", "green")
        await self._same_generation(connection, before)
        await node.start()
        self._show.say("  node 1 is started again on its data; what it missed is repaired in the background")

    async def _stop_coordinator(self, progress: Progress, connection: muster.Cluster) -> None:
        name, before = await self._owner(connection), await self._generation(connection)
        self._show.say(f"SIGTERM {name}, the coordinator that owns the group now", "bold yellow")
        asked_ms = boot_ms()
        code = await self._cluster.coordinator(name).terminate()
        ended_ms = boot_ms()
        since = boot_ms()
        await self._wait(
            progress, lambda: any(c.sent_ms >= since for c in progress.commits), "a commit at the successor"
        )
        gap = progress.longest_gap_ms(asked_ms, boot_ms())
        owner = await self._owner(connection)
        self._show.say(
            f"  it handed over to {owner} and ended with code {code} after {ended_ms - asked_ms} ms; "
            f"longest pause between commits {gap} ms",
            "green",
        )
        await self._same_generation(connection, before)

    async def _same_generation(self, connection: muster.Cluster, before: int) -> None:
        now = await self._generation(connection)
        if now != before:
            raise DemoError(f"the group went from generation {before} to {now}: a rebalance without need")
        self._show.say(f"  no rebalance: still generation {now}", "green")

    # -- the end ------------------------------------------------------------------------------------

    def _compare(self, lines: list[str]) -> bool:
        alone, together = count_words(lines), collect(self._workload.url, PARTITIONS)
        if alone == together:
            self._show.say(
                f"equal: {alone.total()} words, {len(alone)} different ones, as a single process counts them",
                "bold green",
            )
            return True
        wrong = [word for word in alone.keys() | together.keys() if alone[word] != together[word]]
        listed = ", ".join(
            f"{word!r} {together[word]} instead of {alone[word]}" for word in sorted(wrong)[:5]
        )
        self._show.say(f"NOT EQUAL: {len(wrong)} words differ: {listed}", "bold red")
        return False
