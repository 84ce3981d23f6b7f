"""Reports of where the work ends: they end with their member, whatever moment it chooses."""

import asyncio
from typing import Any, cast

import pytest
from muster import TopicPartition
from muster._clock import boot_ms
from muster._cluster.link import Outcome
from muster._member import reports
from muster._member.reports import Reporter
from muster._standing.life import Life
from muster._standing.seat import Caller, Seat
from muster._standing.standing import Standing
from muster_protos.muster.v1 import coordinator_pb2

A = TopicPartition("t", 0)
TOKENS = {A: "0000000001-0000000000000001"}


class Link:
    """Answers each report, and keeps it."""

    shard_epoch = 1

    def __init__(self) -> None:
        self.ends: list[int] = []

    async def call(self, request: Any, _: object, **__: object) -> Outcome[Any]:
        self.ends += [entry.end for topic in request.ends for entry in topic.partitions]
        return Outcome(0, coordinator_pb2.OffsetCommitResponse())


@pytest.mark.parametrize("turns", range(5))
async def test_a_member_may_close_at_any_moment_after_a_report(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the turn of the loop in which the reporter wakes: a cancellation must not be lost there."""
    monkeypatch.setattr(reports, "INTERVAL_MS", 0)
    link = Link()
    standing = Standing(Caller("g"), Life(45_000), seat=Seat("m", 1), owned=dict(TOKENS), holding=True)
    standing.life.renew(boot_ms())
    reporter = Reporter(cast(Any, link), standing, request_timeout_ms=1_000)
    reporter.report({A: 1}, TOKENS)
    for _ in range(10):
        await asyncio.sleep(0)
    assert link.ends == [1]
    reporter.report({A: 2}, TOKENS)
    for _ in range(turns):
        await asyncio.sleep(0)
    closing = asyncio.create_task(reporter.close())
    for _ in range(10):
        await asyncio.sleep(0)
    assert closing.done()
