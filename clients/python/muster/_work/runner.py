"""Runs the work: one job per owned partition, which calls the user's function, and calls it again."""

import asyncio
import logging
from collections.abc import Iterable

from muster._clock import monotonic_s
from muster._errors import (
    ClusterUnavailable,
    CommitFailed,
    GroupError,
    MemberClosed,
    MusterError,
    RequestRefused,
    WorkFailed,
    WorkIdle,
)
from muster._member.member import Member
from muster._metrics.instruments import FAILED, IDLE, NO_CLUSTER, RETURNED
from muster._metrics.member import MemberMetrics
from muster._parking import when
from muster._values import TopicPartition
from muster._work.attempt import Attempt
from muster._work.failures import Failures, Traces
from muster._work.job import Case, Job, tasks_of
from muster._work.marks import Marks, until_next_look
from muster._work.names import Names
from muster._work.partition import Partition
from muster._work.policy import Work, WorkPolicy

log = logging.getLogger("muster")

END_WITHIN_MS = 10_000
"""How long idle work may take to end, at most; after that it is stuck."""

SECOND_LOOK_MS = 1_000
"""Work is idle when it still is so much later (or a tenth of `max_idle_ms`, if shorter): where the process
was stopped, or its event loop blocked, the work could show nothing."""

_CLUSTER = (ClusterUnavailable, CommitFailed, GroupError, MemberClosed, RequestRefused)
"""Failures that are not the work's own."""


class WorkRunner:
    """Starts work on assigned partitions, ends it on revoked and lost ones, and carries the policy out.

    Args:
        work: the user's function.
        policy: what happens when it fails, hangs or returns.

    Attributes:
        failure: what the program has to stop with: `WorkFailed`, or what is no error, such as `SystemExit`;
            None: it goes on.
        failed: set together with `failure`.
    """

    def __init__(self, work: Work, policy: WorkPolicy | None = None) -> None:
        self._work = work
        self._policy = policy or WorkPolicy()
        self._marks: Marks | None = None
        self._names: Names | None = None
        self._metrics: MemberMetrics | None = None
        self._cases: dict[TopicPartition, Case] = {}
        self._running: dict[TopicPartition, Job] = {}
        self._leaving: dict[TopicPartition, list[Job]] = {}
        self._traces = Traces()
        self._stopped = False
        self.failure: BaseException | None = None
        self.failed = asyncio.Event()

    def park_in(self, marks: Marks) -> None:
        """Parks partitions in the log of the group; without this they are parked in this process alone."""
        self._marks = marks

    def name_by(self, names: Names) -> None:
        """Looks the names of partitions up; without this they have none."""
        self._names = names

    def count_in(self, metrics: MemberMetrics) -> None:
        """Counts what is called again and what is parked; without this nobody does."""
        self._metrics = metrics
        metrics.parked = lambda: [where for where, job in tuple(self._running.items()) if job.parked]

    def start(self, member: Member, partitions: tuple[TopicPartition, ...]) -> None:
        """Starts the work on some partitions, unless it is being drained."""
        if self._stopped:
            return
        loop = asyncio.get_running_loop()
        if self._names is not None:
            self._names.assigned()
        for where in partitions:
            job = Job(where, self._cases.setdefault(where, Case(Failures(self._policy))))
            before = tasks_of(self._leaving.get(where, ()))
            job.task = loop.create_task(self._look_after(member, job, before), name=f"muster-job-{where}")
            self._running[where] = job
        owned = set(member.partitions) | self._running.keys()
        self.forget([where for where in self._cases if where not in owned])  # others have them now

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets partitions that this process no longer keeps: their pauses, failures and parking."""
        for where in partitions:
            self._cases.pop(where, None)

    def end(self, partitions: tuple[TopicPartition, ...] | None = None) -> list["asyncio.Task[None]"]:
        """Cancels tasks and sets `is_ending` for threads; returns the tasks that have not ended yet.

        Args:
            partitions: which ones; None: all.
        """
        wanted = tuple(self._running) if partitions is None else partitions
        for where in wanted:
            if where not in self._running:
                continue
            job = self._running.pop(where)
            job.end()
            # Earlier work on the partition may not have ended either: this job may still be waiting for it.
            self._leaving[where] = [*self._leaving.get(where, ()), job]
        leaving = {where: [job for job in jobs if not job.done] for where, jobs in self._leaving.items()}
        self._leaving = {where: jobs for where, jobs in leaving.items() if jobs}
        asked = self._leaving if partitions is None else {*partitions} & self._leaving.keys()
        return [task for where in asked for task in tasks_of(self._leaving[where])]

    async def end_and_wait(self, partitions: tuple[TopicPartition, ...] | None = None) -> None:
        """Ends work and waits for it."""
        if ending := self.end(partitions):
            await asyncio.wait(ending)

    async def drain(self) -> None:
        """Ends all work for good; leaves what has not ended after `drain_timeout_ms`, and logs it."""
        self._stopped = True
        limit_ms = self._policy.drain_timeout_ms
        if not (ending := self.end()):
            return
        _, late = await asyncio.wait(ending, timeout=limit_ms / 1_000)
        for job in [job for jobs in self._leaving.values() for job in jobs if job.task in late]:
            log.error(
                "work on %s did not end within drain_timeout_ms (%d) and is cut off; it stands at\n%s",
                job.where,
                limit_ms,
                job.attempt.stack() if job.attempt else "  its end",
            )
            job.leave()
        if late:
            await asyncio.wait(late)

    async def _look_after(self, member: Member, job: Job, before: "list[asyncio.Task[None]]") -> None:
        """Runs a job; what fails beside the work ends the program, for nobody would work on the partition."""
        try:
            await self._run(member, job, before)
        except Exception as error:
            log.exception("%s cannot be worked on", job.where)
            self._fail(job.where, error)

    async def _run(self, member: Member, job: Job, before: "list[asyncio.Task[None]]") -> None:
        if before:
            # The work of an earlier ownership is still ending; never two at once.
            await asyncio.wait(before)
        case = job.case
        name = None if self._names is None else await self._names.of(job.where)
        while not job.ending and await self._may_be_called(job):
            await asyncio.sleep(max(0, case.failures.next_s - monotonic_s()))
            try:
                partition = Partition(member, job.where, case.signs, name)
            except CommitFailed:
                return  # the member's life has just ended: what it owns is lost, and assigned again
            error = await self._attempt(job, partition)
            if job.left:
                return
            if error is None:
                if job.ending or not await self._has_returned(job, partition):
                    return
            elif not await self._has_failed(job, partition, error):
                return
            if self._metrics is not None and not job.looks:  # else it was parked
                self._metrics.retried(job.where, _why_again(error))

    async def _may_be_called(self, job: Job) -> bool:
        """Waits while the partition is parked; returns False if that is for this process to decide alone."""
        case, said = job.case, None
        while self._marks is not None and job.looks and not case.parked:
            try:
                mark = await self._marks.of(job.where)
                if mark is None:
                    break
                if mark.version != self._policy.version:
                    log.warning(
                        "%s was parked by another version: %s; it is tried again", job.where, mark.reason
                    )
                    await self._marks.remove(job.where)
                    break
            except MusterError as error:
                log.warning("whether %s is parked cannot be read: %s; trying again", job.where, error)
            else:
                if said != mark.reason:
                    log.error(
                        "%s is parked since %s UTC: %s; `muster partitions release` ends that",
                        job.where,
                        when(mark.since_ms),
                        mark.reason,
                    )
                said = mark.reason
                job.parked = True
            await until_next_look()
        job.looks = False
        job.parked = bool(case.parked)
        if said is not None and not case.parked:
            log.warning("%s was released; its work is called again", job.where)
        return not case.parked

    async def _attempt(self, job: Job, partition: Partition) -> BaseException | None:
        """Calls the work once, to its end; returns what it raised."""
        began_s = monotonic_s()
        job.case.signs.begin()
        attempt = job.attempt = Attempt(self._work, partition, f"muster-work-{job.where}")
        idle: WorkIdle | None = None
        try:
            while not (attempt.task.done() or job.left):
                try:
                    if idle is None:
                        idle = await self._watch(job, attempt)
                    else:
                        await asyncio.wait((attempt.task,), timeout=None)
                except asyncio.CancelledError:
                    job.ending = True
                    attempt.cancel()
        finally:
            job.attempt = None
        lasted_ms = (monotonic_s() - began_s) * 1_000
        if job.case.signs.advanced or lasted_ms >= self._policy.retry_for_ms:
            job.case.failures.reset()
        if not attempt.task.done():
            return None
        error = attempt.error
        if error is None and attempt.task.cancelled() and idle is None and not job.ending:
            error = asyncio.CancelledError("the work cancelled itself")
        return error or idle

    async def _watch(self, job: Job, attempt: Attempt) -> WorkIdle | None:
        """Waits for the end of the work; stops it when it is idle for too long, and returns that."""
        signs, limit_ms = job.case.signs, self._policy.max_idle_ms
        if not limit_ms or self._stopped:  # a drain has a limit of its own
            await asyncio.wait((attempt.task,))
            return None
        look_again_ms = min(SECOND_LOOK_MS, limit_ms / 10)
        looks = 0
        while looks < 2:
            left_ms = limit_ms - signs.idle_ms()
            looks = 0 if left_ms > 0 else looks + 1
            await asyncio.wait((attempt.task,), timeout=max(look_again_ms, left_ms) / 1_000)
            if attempt.task.done():
                return None
        log.error(
            "work on %s neither commits nor calls alive() for max_idle_ms (%d) and is stopped; it stands at"
            "\n%s",
            job.where,
            limit_ms,
            attempt.stack(),
        )
        idle = WorkIdle(job.where, limit_ms)
        attempt.cancel()
        await asyncio.wait((attempt.task,), timeout=min(limit_ms, END_WITHIN_MS) / 1_000)
        if not attempt.task.done():
            log.error(
                "work on %s is stuck; the process leaves the group, so that others go on. It stands at\n%s",
                job.where,
                attempt.stack(),
            )
            self._fail(job.where, idle)
            job.leave()
        return idle

    async def _has_returned(self, job: Job, partition: Partition) -> bool:
        """The work returned; returns whether it is called again."""
        case, decision = job.case, self._policy.on_return
        if decision == "park":
            return await self._park(job, partition, "the work returned")
        if decision == "done":
            if not case.returned:
                log.warning(
                    "work on %s returned; the partition stays owned and idle (on_return says otherwise)",
                    job.where,
                )
            case.returned = True
            return False
        if case.signs.advanced:
            case.failures.next_s = 0
            return True
        pause_s = case.failures.wait()
        if not case.returned:
            log.warning(
                "work on %s returned and had committed nothing new; again in %.1f s", job.where, pause_s
            )
        case.returned = True
        return True

    async def _has_failed(self, job: Job, partition: Partition, error: BaseException) -> bool:
        """The work raised; returns whether it is called again."""
        policy, failures = self._policy, job.case.failures
        if not isinstance(
            error, Exception | asyncio.CancelledError
        ):  # SystemExit is to end the program in order
            self._fail(job.where, error)
            return False
        if isinstance(error, _CLUSTER):
            if job.ending:
                return False
            if policy.on_error == "exit" and not isinstance(error, CommitFailed):
                self._fail(job.where, error)
                return False
            # A commit may fail shortly before the partition itself ends, which ends the pause.
            level = logging.INFO if isinstance(error, CommitFailed) else logging.WARNING
            log.log(level, "work on %s ended: %s; again in %.1f s", job.where, error, failures.wait())
            return True
        failures.add()
        count = failures.count
        try:
            decision = await policy.decide(partition, error, count)
        except Exception as failed:
            log.exception("on_error raised about %s", job.where)
            self._fail(job.where, failed)
            return False
        if decision == "exit":
            self._fail(job.where, error)
            return False
        trace = error if self._traces.is_new(error) else None
        what = f"{type(error).__name__}: {error}"
        if decision == "park" or failures.is_over:
            log.error("work on %s failed (attempt %d): %s", job.where, count, what, exc_info=trace)
            return await self._park(job, partition, f"attempt {count}: {what}")
        log.warning(
            "work on %s failed (attempt %d of %d), next try in %.1f s: %s",
            job.where,
            count,
            policy.retry_attempts,
            failures.wait(),
            what,
            exc_info=trace,
        )
        return not job.ending

    async def _park(self, job: Job, partition: Partition, why: str) -> bool:
        """Parks a partition; returns whether its work is called again, once it is released."""
        job.case.failures.reset()
        if job.ending:
            return False  # the next owner finds out
        if self._marks is not None:
            try:
                if await self._marks.put(job.where, partition.token, why, self._policy.version):
                    job.looks = True
                    return True
            except CommitFailed as error:
                log.info("%s is not parked: %s", job.where, error)
                return False
        job.case.parked = why
        job.parked = True
        log.error("%s is parked: %s; its work is not called any more in this process", job.where, why)
        return False

    def _fail(self, where: TopicPartition, error: BaseException) -> None:
        if self.failure is not None:
            log.error("work on %s failed too", where, exc_info=error)
            return
        self.failure = error
        if isinstance(error, Exception | asyncio.CancelledError):
            self.failure = WorkFailed(where, error)
            self.failure.__cause__ = error
        self.failed.set()


def _why_again(error: BaseException | None) -> str:
    """Why the work is called again, as the metrics name it."""
    if error is None:
        return RETURNED
    if isinstance(error, WorkIdle):
        return IDLE
    return NO_CLUSTER if isinstance(error, _CLUSTER) else FAILED
