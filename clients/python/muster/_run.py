"""`run` and `arun`: a function, a group and a topic is all they need."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Unpack

import grpc

from muster._blocked.naming import BlockNaming
from muster._cluster.cluster import Cluster
from muster._config import check_group_id, check_name, check_partitions_or_names, protocol_of
from muster._errors import SettingsError
from muster._member.member import Member
from muster._session.tls import TlsFiles
from muster._session.token import TokenFile
from muster._until_signal import ensure_topic, first, run_until_signal
from muster._values import TopicPartition
from muster._work.marks import Marks
from muster._work.names import Names
from muster._work.policy import Work, WorkPolicy, WorkSettings, check_work
from muster._work.runner import WorkRunner

ASSIGNORS = ("cooperative-sticky", "range")
"""Keeps what does not move, once no worker is left that only knows `range`, as those of 0.1.0 do."""


def run(
    work: Work,
    *,
    group: str,
    topic: str,
    partitions: int | Sequence[str] | None = None,
    servers: str | Sequence[str] | None = None,
    credentials: grpc.ChannelCredentials | TlsFiles | None = None,
    token_file: str | os.PathLike[str] | TokenFile | None = None,
    **settings: Unpack[WorkSettings],
) -> None:
    """Works on a share of a topic's partitions until SIGINT or SIGTERM.

    `work` is called once for each partition that this process owns, and again if the process gets the
    partition again later. An `async def` runs as a task, which is cancelled when the partition is lost. A
    plain `def` runs in a thread and gets a `BlockingPartition`, whose `is_ending` asks it to stop. On a
    signal all work ends, commits are finished and the process leaves the group, so that the others take over
    at once; work that takes longer than `drain_timeout_ms` is left, and a second signal ends the process
    without waiting. Signals are handled in the main thread only. While no server answers it waits, and logs
    why.

    Any other function, such as a lambda or a decorated one, is called in a thread too; what it returns is
    awaited if it can be. Work that raises is called again, and after some failures in a row its partition is
    parked: the others go on. `WorkPolicy` says what else can be done about work that fails, hangs or returns.

    Args:
        work: the function.
        group: processes with the same group share the partitions.
        topic: what to work on.
        partitions: how many partitions the topic has at least, or names of partitions that it has, such as
            tenants: it is created with these, or gets what it lacks, and never loses any. None: what the
            catalog says; while it has no such topic this waits, and logs why.
        servers: see `Cluster`.
        credentials: see `Cluster`.
        token_file: see `Cluster`.
        settings: see `WorkPolicy` and `MemberConfig`; in classic groups `assignors` is
            `["cooperative-sticky", "range"]` unless it is given.

    Raises:
        WorkFailed: the work raised and `on_error` said "exit", or it is stuck (`max_idle_ms`); its exception
            is the cause. Everything was stopped before.
        SystemExit: the work raised it. Everything was stopped before.
        TopicError: the topic cannot have so many partitions.
        GroupError: the group refuses the member.
        SettingsError: a setting is outside its limits, or a certificate or token file cannot be read.
        KeyboardInterrupt: a second signal came before everything had ended.
    """

    async def main(stop: asyncio.Event) -> None:
        await arun(
            work,
            group=group,
            topic=topic,
            partitions=partitions,
            servers=servers,
            credentials=credentials,
            token_file=token_file,
            stop=stop,
            **settings,
        )

    run_until_signal(main)


async def arun(
    work: Work,
    *,
    group: str,
    topic: str,
    partitions: int | Sequence[str] | None = None,
    servers: str | Sequence[str] | None = None,
    credentials: grpc.ChannelCredentials | TlsFiles | None = None,
    token_file: str | os.PathLike[str] | TokenFile | None = None,
    stop: asyncio.Event | None = None,
    **settings: Unpack[WorkSettings],
) -> None:
    """`run` for programs with an event loop of their own; ends when `stop` is set or it is cancelled."""
    check_work(work)
    check_group_id(group)
    check_name("topic", topic)
    partitions = check_partitions_or_names(partitions)
    if stop is not None and not isinstance(stop, asyncio.Event):
        raise SettingsError("stop", f"must be an asyncio.Event, not {stop!r}")
    policy, of_member = WorkPolicy.split(settings)
    protocol = protocol_of(of_member)
    if of_member.get("assignors") is None and protocol != "incremental":
        # Not as if the user had asked for them: that would make classic members of all.
        of_member |= {"assignors": ASSIGNORS, "protocol": protocol}
    runner = WorkRunner(work, policy)

    def assigned(owned: tuple[TopicPartition, ...]) -> None:
        runner.start(member, owned)

    async def revoked(owned: tuple[TopicPartition, ...]) -> None:
        await runner.end_and_wait(owned)
        if member.is_incremental:
            runner.forget(owned)  # others get them

    def lost(owned: tuple[TopicPartition, ...]) -> None:
        runner.end(owned)

    watch = BlockNaming(policy.loop_block_warn_ms).watching() if policy.loop_block_warn_ms else nullcontext()
    async with Cluster(servers, credentials=credentials, token_file=token_file) as cluster:
        member = Member(
            cluster,
            group_id=group,
            topics=topic,
            on_partitions_assigned=assigned,
            on_partitions_revoked=revoked,
            on_partitions_lost=lost,
            **of_member,
        )
        marks = Marks(cluster, member)
        runner.park_in(marks)
        runner.count_in(member.metrics)
        names = Names(cluster.topics)
        runner.name_by(names)
        stopping = stop or asyncio.Event()
        await first(_look_up(names, cluster, topic, partitions), stopping)
        if stopping.is_set():
            return
        await member.start()
        with watch:
            try:
                await first(member.wait(), stopping, runner.failed)
            finally:
                try:
                    await runner.drain()
                except BaseException:
                    member.begin_close("the program was stopped at once")  # when its work has ended
                    raise
                finally:
                    marks.close()
                await member.close("the work failed" if runner.failure else "the program stopped")
    if runner.failure is not None:
        raise runner.failure


async def _look_up(
    names: Names, cluster: Cluster, topic: str, partitions: int | Sequence[str] | None
) -> None:
    names.note(await ensure_topic(cluster, topic, partitions))
