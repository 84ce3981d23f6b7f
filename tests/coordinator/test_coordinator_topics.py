"""Topics that are deleted and created again while a coordinator hears late of it; on the real log."""

import asyncio
from typing import Any

import pytest
from coordinator.coordinator_cluster import group_of, owns
from coordinator.real_cluster import SHARDS, RealCluster
from kit.waiting import until
from muster_coordinator.coordinator import Coordinator
from muster_core import error_code
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.v1 import discovery_pb2
from muster_runtime.cluster.view import ClusterView

pytestmark = pytest.mark.cluster

NEVER_MS = 3_600_000
GROUP = group_of(1, 0, SHARDS)


class HeldBack:
    """Keeps what metadata pushes from a view until it is let go; the lease goes on."""

    def __init__(self, view: Any) -> None:
        self._view = view
        self._apply = view._apply
        self._messages: list[metadata_pb2.WatchResponse] = []
        self._view._apply = self._messages.append

    def let_go(self) -> None:
        self._view._apply = self._apply
        for message in self._messages:
            self._apply(message)


def view_of(coordinator: Coordinator) -> ClusterView:
    assert coordinator._parts is not None
    return coordinator._parts.view


async def create(real: RealCluster, timeout: float = 20, name: str = "t") -> metadata_pb2.ChangeTopicResponse:
    topic = discovery_pb2.Topic(name=name, partitions=1)
    answer: metadata_pb2.ChangeTopicResponse = await real.stub.ChangeTopic(
        metadata_pb2.ChangeTopicRequest(create=topic), timeout=timeout
    )
    return answer


async def delete(real: RealCluster, name: str = "t") -> metadata_pb2.ChangeTopicResponse:
    request = metadata_pb2.ChangeTopicRequest(delete=name, change_id=name.encode().ljust(16, b"d"))
    return await carried_out(real, request)


async def carried_out(
    real: RealCluster, request: metadata_pb2.ChangeTopicRequest
) -> metadata_pb2.ChangeTopicResponse:
    """Repeats a change until nobody is waited for any more."""
    async with asyncio.timeout(60):
        while (answer := await real.stub.ChangeTopic(request, timeout=60)).pending:
            pass
    assert isinstance(answer, metadata_pb2.ChangeTopicResponse)
    return answer


def topics(view: ClusterView) -> list[str]:
    return [] if view.catalog is None else [topic.name for topic in view.catalog.topics]


def holes(view: ClusterView) -> list[int]:
    if view.catalog is None or not view.catalog.topics:
        return []
    return [n for n, entry in enumerate(view.catalog.topics[0].names.partitions) if not entry.name]


async def test_a_commit_into_a_topic_that_was_created_again_stays_however_late_its_coordinator_hears(
    real: RealCluster,
) -> None:
    owner = await real.add("a", settle_ms=NEVER_MS)
    await owns(owner, SHARDS)
    witness = await real.add("b", settle_ms=NEVER_MS)
    await create(real)
    await until(lambda: topics(view_of(owner)) == topics(view_of(witness)) == ["t"])
    caller = real.caller(owner)
    assert await caller.commit(GROUP, 1) == error_code.NONE
    held = HeldBack(view_of(owner))
    deleting = asyncio.create_task(delete(real))
    await until(lambda: not topics(view_of(witness)))
    # It is deleted for everybody but the owner of the group: nobody may be told so, nor create it again.
    refused = await create(real, timeout=4)
    assert (refused.error_code, refused.pending) == (error_code.COORDINATOR_NOT_AVAILABLE, True)
    assert not deleting.done()
    held.let_go()
    assert (await deleting).error_code == error_code.NONE
    assert (await create(real)).error_code == error_code.NONE
    assert await caller.commit(GROUP, 1_000) == error_code.NONE
    await until(lambda: topics(view_of(owner)) == topics(view_of(witness)) == ["t"])
    assert await caller.fetch(GROUP) == [(error_code.NONE, 1_000)]


async def test_a_removal_of_a_partition_waits_for_every_coordinator(real: RealCluster) -> None:
    owner = await real.add("a", settle_ms=NEVER_MS)
    await owns(owner, SHARDS)
    witness = await real.add("b", settle_ms=NEVER_MS)
    create = metadata_pb2.ChangeTopicRequest(create=discovery_pb2.Topic(name="t", partitions=2))
    for name in ("first", "second"):
        create.create.names.partitions.add(name=name)
    created = await real.stub.ChangeTopic(create, timeout=20)
    assert created.error_code == error_code.NONE, created
    await until(lambda: topics(view_of(owner)) == topics(view_of(witness)) == ["t"])
    caller = real.caller(owner)
    assert await caller.commit(GROUP, 1) == error_code.NONE
    held = HeldBack(view_of(owner))
    request = metadata_pb2.ChangeTopicRequest(change_id=b"r" * 16)
    request.alter_partitions.topic = "t"
    request.alter_partitions.remove.append("first")

    removing = asyncio.create_task(carried_out(real, request))
    await until(lambda: holes(view_of(witness)) == [0])
    assert await caller.commit(GROUP, 2) == error_code.NONE
    assert not removing.done()
    held.let_go()
    answer = await removing
    assert [entry.name for entry in answer.topic.names.partitions] == ["", "second"]
    assert await caller.commit(GROUP, 3) == error_code.UNKNOWN_TOPIC_OR_PARTITION
    assert await caller.fetch(GROUP) in ([], [(error_code.NONE, -1)])


async def test_a_coordinator_that_hears_of_both_together_keeps_nothing_of_the_topic_before(
    real: RealCluster,
) -> None:
    owner = await real.add("a", settle_ms=NEVER_MS)
    await owns(owner, SHARDS)
    await create(real)
    await until(lambda: topics(view_of(owner)) == ["t"])
    caller = real.caller(owner)
    assert await caller.commit(GROUP, 1) == error_code.NONE
    first = view_of(owner).catalog
    assert first is not None
    # What the catalog's log says after both, without the view in between.
    both = metadata_pb2.TopicCatalog()
    both.CopyFrom(first)
    both.version.offset += 2
    both.topics[0].incarnation = both.version.offset
    both.deletions.add(name="t", offset=both.version.offset - 1)
    view = view_of(owner)
    assert view.cluster is not None
    view._apply(metadata_pb2.WatchResponse(cluster=view.cluster, catalog=both))
    assert await caller.fetch(GROUP) == [(error_code.NONE, -1)]


async def test_a_deletion_that_the_catalog_forgot_while_nobody_served_is_carried_out_by_the_next_owner(
    real: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster_core.log.topics.topics.MAX_DELETIONS", 2)
    owner = await real.add("a", settle_ms=NEVER_MS)
    await owns(owner, SHARDS)
    for name in ("t", "kept"):
        await create(real, name=name)
    await until(lambda: topics(view_of(owner)) == ["kept", "t"])
    caller = real.caller(owner)
    for name in ("t", "kept"):
        assert await caller.commit(GROUP, 1, topic=name) == error_code.NONE
    await owner.drain_and_stop()
    assert (await delete(real)).error_code == error_code.NONE
    assert (await create(real)).error_code == error_code.NONE
    for name in ("x", "y", "z"):
        await create(real, name=name)
        assert (await delete(real, name)).error_code == error_code.NONE
    after = await real.add("b", settle_ms=NEVER_MS)
    await owns(after, SHARDS)
    view = view_of(after).catalog
    assert view is not None
    assert "t" not in [removed.name for removed in view.deletions]
    caller = real.caller(after)
    assert await caller.fetch(GROUP, topic="t") == [(error_code.NONE, -1)]
    assert await caller.fetch(GROUP, topic="kept") == [(error_code.NONE, 1)]


@pytest.mark.brief_lease
async def test_a_deletion_does_not_wait_for_a_coordinator_that_died(real: RealCluster) -> None:
    first, second = await real.add("a"), await real.add("b")
    await create(real)
    await until(lambda: topics(view_of(first)) == topics(view_of(second)) == ["t"])
    await first.abort()
    assert (await delete(real)).error_code == error_code.NONE


async def test_who_has_a_lease_serves_nothing_before_it_heard_of_what_is_acknowledged(
    real: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(real)
    apply = ClusterView._apply
    held: list[tuple[ClusterView, metadata_pb2.WatchResponse]] = []

    def without_the_catalog(view: ClusterView, message: metadata_pb2.WatchResponse) -> None:
        rest = metadata_pb2.WatchResponse()
        rest.CopyFrom(message)
        rest.ClearField("catalog")
        held.append((view, message))
        apply(view, rest)

    monkeypatch.setattr(ClusterView, "_apply", without_the_catalog)
    owner = await real.add("a", join_delay_ms=0)
    await until(lambda: owner.node_id in [node.node_id for node in cluster_of(owner).coordinators])
    assert not owner.shards
    monkeypatch.undo()
    for view, message in held:
        apply(view, message)
    await owns(owner, SHARDS)


def cluster_of(coordinator: Coordinator) -> discovery_pb2.Cluster:
    return view_of(coordinator).cluster or discovery_pb2.Cluster()
