"""A core that raises, by each kind of event, in a real coordinator: who pays, and what is kept of it."""

import asyncio
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
from coordinator.coordinator_cluster import SHARDS, Caller, MemoryCluster, group_of, owns
from coordinator.session_client import Session, detach, stable
from google.protobuf import json_format
from kit.waiting import until, until_equal
from muster_coordinator.coordinator import Coordinator
from muster_coordinator.failstop import faults
from muster_coordinator.log.shard_log import ShardLog
from muster_coordinator.shard.owned_shard import OwnedShard
from muster_coordinator.shard.phase import Phase
from muster_core import error_code, fault
from muster_core.events import (
    Assigned,
    Event,
    FeaturesEnabled,
    GroupRequest,
    Request,
    Resolved,
    Resume,
    StreamBroken,
    Suspend,
    TopicsChanged,
)
from muster_core.features import ALL_FEATURES
from muster_core.log.application import Application
from muster_core.protocol.context import ShardContext
from muster_core.protocol.generations.rebalance import Rebalancer
from muster_core.protocol.group_settings import SettingsChanges
from muster_core.protocol.incremental.deadlines import Deadlines
from muster_core.protocol.incremental.descriptions import Descriptions
from muster_core.protocol.incremental.heartbeats import IncrementalHeartbeats
from muster_core.protocol.incremental.kinds.kind_changes import KindChanges
from muster_core.protocol.lines import Lines
from muster_core.protocol.membership.leaves import Leaves
from muster_core.protocol.membership.streams import Streams
from muster_core.protocol.membership.syncs import Syncs
from muster_core.protocol.offsets.offset_commits import OffsetCommits
from muster_core.protocol.offsets.offsets import Offsets
from muster_core.protocol.queries import Queries
from muster_core.shard import Shard
from muster_core.state.group import Group
from muster_core.state.members.member import Member
from muster_core.state.offsets.offset_store import OffsetStore
from muster_protos.muster.internal.v1 import coordinator_pb2 as peer_pb2
from muster_protos.muster.internal.v1 import coordinator_pb2_grpc as peer_pb2_grpc
from muster_protos.muster.internal.v1 import fault_pb2
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, group_conversion_pb2, incremental_pb2
from muster_protos.muster.v1.group_conversion_pb2 import ConvertGroupRequest
from muster_protos.muster.v1.group_settings_pb2 import AlterGroupSettingsRequest, GroupSettings
from muster_runtime import clock

pytestmark = pytest.mark.cluster

SHARD = 2
GOOD, BAD = group_of(SHARD, 0), group_of(SHARD, 1)
AGAIN = {
    error_code.COORDINATOR_NOT_AVAILABLE,
    error_code.COORDINATOR_LOAD_IN_PROGRESS,
    error_code.NOT_COORDINATOR,
    error_code.REBALANCE_IN_PROGRESS,
}


class Poison:
    """Makes a function of the core raise when it works on one group in an event of one kind."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self.raised = 0
        self.called = 0
        self._event = ""
        self._monkeypatch = monkeypatch

    def plant(self, case: "Case") -> None:
        """Must come before the core is made."""
        original, handle, loaded = getattr(case.owner, case.name), Shard.handle, Shard.loaded

        def poisoned(*args: Any, **kwargs: Any) -> Any:
            self.called += self._event == case.kind
            if self.left and self._event == case.kind and case.group(*args) == BAD:
                self.left -= 1
                self.raised += 1
                raise RuntimeError("planted")
            return original(*args, **kwargs)

        def handle_noted(shard: Shard, event: Any, now: Any) -> Any:
            self._event = type(event.message if isinstance(event, Request) else event).__name__
            return handle(shard, event, now)

        def loaded_noted(shard: Shard, *args: Any) -> Any:
            self._event = "loaded"
            return loaded(shard, *args)

        self._monkeypatch.setattr(case.owner, case.name, poisoned)
        self._monkeypatch.setattr(Shard, "handle", handle_noted)
        self._monkeypatch.setattr(Shard, "loaded", loaded_noted)

    def plant_in_replays(self) -> None:
        """The records of the group's assignments cannot be replayed."""
        original = Application._assignment_committed

        def poisoned(application: Application, position: Any, wall_ms: int, record: Any) -> None:
            if self.left and record.group_id == BAD:
                self.left -= 1
                self.raised += 1
                raise RuntimeError("planted")
            original(application, position, wall_ms, record)

        self._monkeypatch.setattr(Application, "_assignment_committed", poisoned)


@dataclass(frozen=True)
class Case:
    """An event that makes the core raise when it comes to a group.

    Attributes:
        owner: class of the function that raises.
        name: its name.
        group: the group that it works on, from its arguments.
        happen: brings the event about; returns the code of the answer if it has one.
        kind: of the event.
        repeatable: whether what made it raise was brought about by events alone.
        blamed: whether it is the group's doing; otherwise it is the shard's.
        last: whether it is the shard's last one here, so that there is nothing to put in quarantine.
    """

    owner: type[Any]
    name: str
    group: Callable[..., str]
    happen: Callable[["Scene"], Any]
    kind: str
    repeatable: bool = True
    blamed: bool = True
    last: bool = False


class Scene:
    """A coordinator with two groups of one member on one shard."""

    def __init__(self, only: Coordinator, caller: Caller, session: Session) -> None:
        self.only, self.caller, self.session = only, caller, session
        self.good = self.bad = coordinator_pb2.JoinGroupResponse()

    async def begin(self) -> None:
        self.good = await stable(self.caller, GOOD, session_timeout_ms=60_000)
        wanted = common_pb2.Subscription(version=1, topics=["t"]).SerializeToString()
        self.bad = await stable(
            self.caller,
            BAD,
            protocols=[coordinator_pb2.GroupProtocol(name="range", metadata=wanted)],
            session_timeout_ms=60_000,
            disconnect_grace_ms=50_000,
            client_id="bad",
        )
        assert await self.caller.commit(GOOD, 5, self.good) == error_code.NONE
        assert await self.caller.commit(BAD, 7, self.bad) == error_code.NONE

    @property
    def shard(self) -> OwnedShard:
        return self.only.shards[SHARD]

    async def served(self) -> OwnedShard:
        """Waits until the shard is served."""
        return await until(
            lambda: shard if (shard := self.only.shards.get(SHARD)) and shard.phase is Phase.SERVING else None
        )

    async def again(self, ask: Callable[[], Any]) -> int:
        """Asks until the answer is another than "try again"."""

        async def code() -> int | None:
            answer = await ask()
            found = answer if isinstance(answer, int) else answer.error_code
            return None if found in AGAIN else found + 1

        return await until(code) - 1

    async def all_is_well_for_the_good_one(self) -> None:
        """Its member has place, generation and progress, and was in no rebalance."""
        assert await self.again(lambda: self.caller.heartbeat(GOOD, self.good)) == error_code.NONE
        assert await self.again(lambda: self.caller.commit(GOOD, 6, self.good)) == error_code.NONE
        assert await self.offset_of(GOOD) == 6
        described = await self.described(GOOD)
        assert (described.state, described.generation) == (
            coordinator_pb2.GROUP_STATE_STABLE,
            self.good.generation,
        )

    async def described(self, group_id: str) -> coordinator_pb2.DescribeGroupsResponse.Group:
        answer = await self.caller.stub.DescribeGroups(
            coordinator_pb2.DescribeGroupsRequest(group_ids=[group_id])
        )
        found: coordinator_pb2.DescribeGroupsResponse.Group = answer.groups[0]
        return found

    async def offset_of(self, group_id: str) -> int:
        async def fetched() -> int | None:
            code, offset = (await self.caller.fetch(group_id))[0]
            assert code == error_code.NONE or code in AGAIN
            return None if code else offset + 1

        return await until(fetched) - 1

    # --- events

    async def join(self) -> int:
        return (await self.caller.join(BAD, self.bad.member_id)).error_code

    async def sync(self) -> int:
        return (await self.caller.sync(BAD, self.bad)).error_code

    async def heartbeat(self) -> int:
        return (await self.caller.heartbeat(BAD, self.bad)).error_code

    async def leave(self) -> int:
        member = coordinator_pb2.LeaveGroupRequest.Member(member_id=self.bad.member_id)
        return int(
            (
                await self._ask(
                    "LeaveGroup", coordinator_pb2.LeaveGroupRequest(group_id=BAD, members=[member])
                )
            ).error_code
        )

    async def commit(self) -> int:
        return await self.caller.commit(BAD, 7, self.bad)

    async def fetch(self) -> int:
        return (await self.caller.fetch(BAD))[0][0]

    async def delete_offsets(self) -> int:
        topic = common_pb2.TopicPartitions(topic="t", partitions=[0])
        return int(
            (
                await self._ask(
                    "OffsetDelete", coordinator_pb2.OffsetDeleteRequest(group_id=BAD, topics=[topic])
                )
            ).error_code
        )

    async def describe(self) -> int:
        return (await self.described(BAD)).error_code

    async def list(self) -> int:
        return int((await self._ask("ListGroups", coordinator_pb2.ListGroupsRequest())).error_code)

    async def delete(self) -> int:
        answer = await self._ask("DeleteGroups", coordinator_pb2.DeleteGroupsRequest(group_ids=[BAD]))
        return int(answer.results[0].error_code)

    async def history(self) -> int:
        return int(
            (await self._ask("GroupHistory", coordinator_pb2.GroupHistoryRequest(group_id=BAD))).error_code
        )

    async def incremental_heartbeat(self) -> int:
        request = incremental_pb2.ConsumerGroupHeartbeatRequest(
            group_id=BAD, member_id="m", member_epoch=0, rebalance_timeout_ms=60_000
        )
        request.topics.names.append("t")
        request.owned.SetInParent()
        return int((await self._ask("ConsumerGroupHeartbeat", request)).error_code)

    async def incremental_describe(self) -> int:
        request = incremental_pb2.ConsumerGroupDescribeRequest(group_ids=[BAD])
        return int((await self._ask("ConsumerGroupDescribe", request)).groups[0].error_code)

    async def alter_settings(self) -> int:
        request = AlterGroupSettingsRequest(group_id=BAD, set=GroupSettings(hold=True))
        return int((await self._ask("AlterGroupSettings", request)).error_code)

    async def convert(self) -> int:
        request = ConvertGroupRequest(group_id=BAD, kind=group_conversion_pb2.GROUP_KIND_INCREMENTAL)
        return int((await self._ask("ConvertGroup", request)).error_code)

    async def _ask(self, name: str, request: Any) -> Any:
        return await getattr(self.caller.stub, name)(request, timeout=60)

    async def cancel(self) -> None:
        """A member of the bad group is parked, and its caller goes away."""
        parked = asyncio.ensure_future(self.caller.join(BAD))
        shard = await self.served()
        await until(lambda: shard.open_calls or shard.phase is Phase.GONE)
        parked.cancel()

    async def suspend(self) -> None:
        (await self.served()).notify(Suspend())

    async def resume(self) -> None:
        (await self.served()).notify(Resume())

    async def change_topics(self) -> None:
        (await self.served()).notify(TopicsChanged(frozenset({"t"})))

    async def enable_features(self) -> None:
        (await self.served()).notify(FeaturesEnabled(ALL_FEATURES))

    async def attach(self) -> None:
        await self.session.attach(BAD, self.bad)

    async def detach(self) -> None:
        await self.session.attach(BAD, self.bad)
        await self.session.send(detach(BAD, self.bad.member_id))

    async def beat(self) -> None:
        await self.session.attach(BAD, self.bad)
        self._bad_member().heartbeat = None  # the slow way of a beat
        await self.session.beat()

    async def break_stream(self) -> None:
        await self.session.attach(BAD, self.bad)
        member = self._bad_member()
        assert member.stream_id is not None
        self.shard.notify(StreamBroken(member.stream_id))

    def _bad_member(self) -> Member:
        core = self.shard.core
        assert core is not None
        return core.groups[BAD].members[self.bad.member_id]

    async def wait(self) -> None:
        """The retention looks for what has expired."""

    async def give_up(self) -> None:
        """The shard is claimed and loaded again."""
        (await self.served()).unload(None)


def of_request(_: Any, __: Any, request: Any) -> str:
    return str(getattr(request, "group_id", ""))


def of_member(_: Any, member: Any, *__: Any) -> str:
    return BAD if member.client_id == "bad" else ""


def of_group(first: Any, *others: Any) -> str:
    group = first if isinstance(first, Group) else others[0]
    return str(group.group_id)


CASES = {
    "join": Case(Group, "set_protocols", of_group, Scene.join, "JoinGroupRequest"),
    "sync": Case(Syncs, "handle", of_request, Scene.sync, "SyncGroupRequest"),
    "heartbeat": Case(Rebalancer, "touch", of_group, Scene.heartbeat, "HeartbeatRequest"),
    "leave": Case(Leaves, "_leave", of_group, Scene.leave, "LeaveGroupRequest"),
    "commit": Case(OffsetCommits, "handle", of_request, Scene.commit, "OffsetCommitRequest"),
    "fetch": Case(
        OffsetStore,
        "get",
        lambda store, _: BAD if 7 in {one.offset for _, one in store} else "",
        Scene.fetch,
        "OffsetFetchRequest",
    ),
    "delete offsets": Case(Offsets, "delete", of_request, Scene.delete_offsets, "OffsetDeleteRequest"),
    "describe": Case(Queries, "_describe", of_group, Scene.describe, "DescribeGroupsRequest"),
    "list": Case(Queries, "_list", of_group, Scene.list, "ListGroupsRequest"),
    "delete": Case(Lines, "in_line", of_group, Scene.delete, "DeleteGroupsRequest"),
    "incremental heartbeat": Case(
        IncrementalHeartbeats,
        "handle",
        of_request,
        Scene.incremental_heartbeat,
        "ConsumerGroupHeartbeatRequest",
    ),
    "incremental describe": Case(
        Descriptions,
        "describe",
        lambda *_: BAD,
        Scene.incremental_describe,
        "ConsumerGroupDescribeRequest",
    ),
    "alter settings": Case(
        SettingsChanges, "alter", of_request, Scene.alter_settings, "AlterGroupSettingsRequest"
    ),
    "convert": Case(KindChanges, "convert", of_request, Scene.convert, "ConvertGroupRequest"),
    "history": Case(Queries, "history", of_request, Scene.history, "GroupHistoryRequest"),
    "cancel": Case(Group, "unpark_join", of_group, Scene.cancel, "Cancelled"),
    "append done": Case(
        Application, "_offset_committed", lambda *args: args[3].group_id, Scene.commit, "AppendDone"
    ),
    "suspend": Case(Deadlines, "suspend", of_group, Scene.suspend, "Suspend"),
    "resume": Case(Rebalancer, "restart_waits", of_group, Scene.resume, "Resume"),
    "topics": Case(Lines, "in_line", of_group, Scene.change_topics, "TopicsChanged"),
    "features": Case(
        Shard, "_features_enabled", lambda *_: BAD, Scene.enable_features, "FeaturesEnabled", blamed=False
    ),
    "attach": Case(Rebalancer, "touch", of_group, Scene.attach, "Attach"),
    "detach": Case(ShardContext, "detach", of_member, Scene.detach, "Detach"),
    "beat": Case(Rebalancer, "touch", of_group, Scene.beat, "Beat", repeatable=False),
    "stream broken": Case(Streams, "_suspect", of_member, Scene.break_stream, "StreamBroken"),
    "time": Case(Offsets, "_expire_group", of_group, Scene.wait, "Tick"),
    "load": Case(Rebalancer, "touch", of_group, Scene.give_up, "loaded"),
    "unload": Case(Group, "become", of_group, Scene.give_up, "Unload", last=True),
}


QUARANTINED = [name for name, case in CASES.items() if case.blamed and not case.last and name != "fetch"]


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Poison:
    monkeypatch.setenv("MUSTER_FAULT_FOLDER", str(tmp_path / "faults"))
    monkeypatch.setenv("MUSTER_GROUP_RETENTION_CHECK_INTERVAL_MS", "100")
    return Poison(monkeypatch)


def kept(folder: Path) -> list[fault_pb2.Fault]:
    """What was kept, oldest first."""
    files = sorted((folder / "faults").glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    return [json_format.Parse(file.read_bytes(), fault_pb2.Fault()) for file in files]


async def begun(cluster: MemoryCluster) -> Scene:
    only = await cluster.add("a")
    await owns(only, SHARDS)
    caller = cluster.caller(only)
    scene = Scene(only, caller, await Session(caller.channel).hello())
    await scene.begin()
    return scene


def test_each_kind_of_event_has_a_case() -> None:
    """But for the call that releases a group, which never comes to a core, and what is computed aside."""
    others = {Request, Assigned, Resolved, coordinator_pb2.ReleaseGroupRequest}
    kinds = {*get_args(Event), *get_args(GroupRequest)} - others
    assert {kind.__name__ for kind in kinds} | {"loaded"} == {case.kind for case in CASES.values()}


@pytest.mark.parametrize("name", CASES)
async def test_a_group_that_makes_the_core_raise_once_costs_nobody_a_rebalance(
    name: str, cluster: MemoryCluster, poison: Poison, tmp_path: Path
) -> None:
    case = CASES[name]
    poison.plant(case)
    scene = await begun(cluster)
    before = await scene.served()
    poison.left = 1
    code = await case.happen(scene)
    assert code is None or code in AGAIN
    await until(lambda: poison.raised)
    await until(lambda: scene.only.shards.get(SHARD) is not before)
    assert (await scene.served()).epoch > before.epoch
    await scene.all_is_well_for_the_good_one()
    assert await scene.again(lambda: scene.caller.heartbeat(BAD, scene.bad)) == error_code.NONE
    (fault_kept,) = kept(tmp_path)
    assert (fault_kept.group_id, fault_kept.shard) == (BAD if case.blamed else "", SHARD)
    assert "planted" in fault_kept.traceback


async def test_a_group_in_quarantine_whose_reads_fail_is_not_read_any_more(
    cluster: MemoryCluster, poison: Poison
) -> None:
    case = CASES["fetch"]
    poison.plant(case)
    scene = await begun(cluster)
    poison.left = 3
    await until(lambda: _raised(scene, case, poison, 3))
    poison.left = 1_000
    await scene.all_is_well_for_the_good_one()
    assert await scene.again(scene.fetch) == error_code.GROUP_QUARANTINED
    assert poison.raised == 3
    assert scene.shard.phase is Phase.SERVING


@pytest.mark.parametrize("name", QUARANTINED)
async def test_a_group_that_makes_the_core_raise_again_is_put_in_quarantine(
    name: str, cluster: MemoryCluster, poison: Poison, tmp_path: Path
) -> None:
    case = CASES[name]
    poison.plant(case)
    scene = await begun(cluster)
    poison.left = 2
    await until(lambda: _raised_twice(scene, case, poison))
    poison.left = 1_000
    await scene.all_is_well_for_the_good_one()
    assert await scene.again(lambda: scene.caller.heartbeat(BAD, scene.bad)) == error_code.GROUP_QUARANTINED
    if case.kind == "TopicsChanged":
        await case.happen(scene)
    elif case.kind == "Tick":
        called = poison.called
        await until(lambda: _called(poison, called + 3))  # for the good one, in several searches
    assert poison.raised == 2, "it is out of every turn"
    poison.left = 0
    assert await scene.offset_of(BAD) == 7
    last = kept(tmp_path)[-1]
    assert last.complete
    if case.repeatable:
        poison.left = 1
        with pytest.raises(RuntimeError, match="planted"):
            fault.repeat(last)


async def _called(poison: Poison, times: int) -> bool:
    return poison.called >= times


async def _raised_twice(scene: Scene, case: Case, poison: Poison) -> bool:
    return await _raised(scene, case, poison, 2)


async def _raised(scene: Scene, case: Case, poison: Poison, times: int) -> bool:
    await scene.served()
    if poison.raised < times:
        await case.happen(scene)
    return poison.raised == times


async def test_what_no_group_is_to_blame_for_fails_the_shard_the_third_time(
    cluster: MemoryCluster, poison: Poison, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene = await begun(cluster)
    raised = 0

    def broken(*_: Any) -> None:
        nonlocal raised
        raised += 1
        raise RuntimeError("planted")

    monkeypatch.setattr(ShardContext, "append_done", broken)
    for _ in range(3):
        await scene.served()
        assert await scene.caller.commit(GOOD, 6, scene.good) in AGAIN
    await until_equal(lambda: scene.shard.phase, Phase.FAILED)
    assert raised == 3
    assert [one.group_id for one in kept(tmp_path)] == ["", "", ""]
    monkeypatch.undo()
    assert await scene.caller.commit(group_of(1), 1) == error_code.NONE


@pytest.mark.parametrize("name", ["_next_batch", "_schedule_rest"])
async def test_a_log_whose_writer_raises_costs_nobody_a_rebalance(
    name: str, cluster: MemoryCluster, poison: Poison, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before a step, or after it: whoever waits for the log is told to try again, and the shard is loaded."""
    scene = await begun(cluster)
    original, left = getattr(ShardLog, name), [SHARD]

    def raises_once(shard_log: ShardLog) -> Any:
        if shard_log.shard in left:
            left.clear()
            raise RuntimeError("planted")
        return original(shard_log)

    before = await scene.served()
    monkeypatch.setattr(ShardLog, name, raises_once)
    assert await scene.caller.commit(GOOD, 5, scene.good) in {error_code.NONE, *AGAIN}
    await until(lambda: scene.only.shards.get(SHARD) is not before)
    assert (await scene.served()).epoch > before.epoch
    await scene.all_is_well_for_the_good_one()
    (fault_kept,) = kept(tmp_path)
    assert (fault_kept.group_id, fault_kept.shard) == ("", SHARD)
    assert "planted" in fault_kept.traceback


async def test_an_event_of_no_group_that_makes_the_core_raise_fails_the_shard_the_third_time(
    cluster: MemoryCluster, poison: Poison, tmp_path: Path
) -> None:
    case = CASES["features"]
    poison.plant(case)
    scene = await begun(cluster)
    poison.left = 3
    await until(lambda: _raised(scene, case, poison, 3))
    await until_equal(lambda: scene.shard.phase, Phase.FAILED)
    assert [one.group_id for one in kept(tmp_path)] == ["", "", ""]
    poison.left = 1
    with pytest.raises(RuntimeError, match="planted"):
        fault.repeat(kept(tmp_path)[-1])


async def test_a_core_that_raises_while_it_is_handed_over_costs_the_members_nothing(
    cluster: MemoryCluster, poison: Poison, tmp_path: Path
) -> None:
    case = CASES["unload"]
    poison.plant(case)
    scene = await begun(cluster)
    parked = asyncio.ensure_future(scene.caller.join(GOOD))
    await until(lambda: scene.shard.open_calls)
    second = await cluster.add("b", settle_ms=3_600_000)
    poison.left = 1
    await scene.only.drain_and_stop()
    assert (await parked).error_code in AGAIN
    await owns(second, SHARDS)
    (fault_kept,) = kept(tmp_path)
    assert (fault_kept.group_id, fault_kept.shard) == (BAD, SHARD)
    scene.only, scene.caller = second, cluster.caller(second)
    await scene.all_is_well_for_the_good_one()
    assert await scene.again(scene.heartbeat) == error_code.NONE
    assert (await scene.described(BAD)).generation == scene.bad.generation


async def test_a_group_whose_records_cannot_be_replayed_costs_the_others_nothing(
    cluster: MemoryCluster, poison: Poison, tmp_path: Path
) -> None:
    poison.plant_in_replays()
    scene = await begun(cluster)
    poison.left = 1_000
    (await scene.served()).unload(None)
    await until(lambda: poison.raised == 2)
    await scene.all_is_well_for_the_good_one()
    assert await scene.heartbeat() == error_code.GROUP_QUARANTINED
    assert await scene.offset_of(BAD) == 7
    with pytest.raises(RuntimeError, match="planted"):
        fault.repeat(kept(tmp_path)[-1])


async def test_an_operator_releases_a_group(cluster: MemoryCluster, poison: Poison, tmp_path: Path) -> None:
    case = CASES["heartbeat"]
    poison.plant(case)
    scene = await begun(cluster)
    release = coordinator_pb2.ReleaseGroupRequest(group_id=BAD)
    assert (await scene.caller.stub.ReleaseGroup(release)).error_code == error_code.GROUP_ID_NOT_FOUND
    poison.left = 2
    await until(lambda: _raised_twice(scene, case, poison))
    await scene.served()
    listed = await scene.caller.stub.ListGroups(coordinator_pb2.ListGroupsRequest(states=["Quarantined"]))
    assert [(group.group_id, group.quarantined) for group in listed.groups] == [(BAD, True)]
    peer: Any = peer_pb2_grpc.CoordinatorPeerServiceStub(scene.caller.channel)
    (described,) = (await peer.DescribeFaults(peer_pb2.DescribeFaultsRequest())).faults
    assert (described.group_id, described.quarantined) == (BAD, True)
    assert described.file.startswith(str(tmp_path / "faults"))
    assert (await scene.described(BAD)).error_code == error_code.GROUP_QUARANTINED
    assert (await scene.caller.stub.ReleaseGroup(release)).error_code == error_code.NONE
    assert await scene.again(scene.heartbeat) == error_code.NONE
    await scene.all_is_well_for_the_good_one()
    assert (await scene.described(BAD)).generation == scene.bad.generation


async def test_a_released_group_has_nothing_of_a_topic_that_was_deleted_meanwhile(
    cluster: MemoryCluster, poison: Poison
) -> None:
    case = CASES["heartbeat"]
    poison.plant(case)
    scene = await begun(cluster)
    poison.left = 2
    await until(lambda: _raised_twice(scene, case, poison))
    (await scene.served()).notify(TopicsChanged(frozenset({"t"}), frozenset({"t"})))
    await until(lambda: _has_nothing(scene), "also before its release nothing is shown of it")
    release = coordinator_pb2.ReleaseGroupRequest(group_id=BAD)
    assert (await scene.caller.stub.ReleaseGroup(release)).error_code == error_code.NONE
    assert await scene.again(scene.heartbeat) != error_code.GROUP_QUARANTINED
    await until(lambda: _has_nothing(scene), "nothing of it comes back")


async def _has_nothing(scene: Scene) -> bool:
    return await scene.caller.fetch(BAD) == [(error_code.NONE, -1)]


async def test_a_group_in_quarantine_goes_along_with_its_shard_when_that_moves(
    cluster: MemoryCluster, poison: Poison
) -> None:
    """The next owner knows nothing of it, and finds it out by itself."""
    case = CASES["heartbeat"]
    poison.plant(case)
    scene = await begun(cluster)
    poison.left = 1_000
    await until(lambda: _raised_twice(scene, case, poison))
    second = await cluster.add("b", settle_ms=3_600_000)
    await scene.only.drain_and_stop()
    await owns(second, SHARDS)
    scene.only, scene.caller = second, cluster.caller(second)
    await scene.all_is_well_for_the_good_one()
    assert await scene.again(scene.heartbeat) == error_code.GROUP_QUARANTINED
    await scene.all_is_well_for_the_good_one()


async def test_a_shard_that_fails_again_and_again_is_not_loaded_all_the_time(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other shards are served meanwhile, and this one once its pause is over."""
    heartbeat, raised = Syncs.heartbeat, list[str]()

    def poisoned(syncs: Syncs, call: Request, request: coordinator_pb2.HeartbeatRequest) -> None:
        if request.member_id == "poison":
            raised.append(request.group_id)
            raise RuntimeError("planted")
        heartbeat(syncs, call, request)

    monkeypatch.setattr(Syncs, "heartbeat", poisoned)
    monkeypatch.setattr(faults, "PAUSE_MS", 3_000)
    only = await cluster.add("a", join_delay_ms=0)
    await owns(only, SHARDS)
    stub = cluster.caller(only).stub
    codes: list[int] = []

    async def attacked() -> bool:
        """Whether the shard failed four times, each time by another group."""
        group_id = group_of(SHARD, 10 + len(raised))
        await stub.Heartbeat(
            coordinator_pb2.HeartbeatRequest(group_id=group_id, member_id="poison"), timeout=60
        )
        return len(raised) == 4

    await until(attacked)
    failed_ms = clock.boot_ms()
    other = coordinator_pb2.HeartbeatRequest(group_id=group_of(SHARD - 1), member_id="nobody")
    async with asyncio.timeout(60):
        while SHARD not in only.serving:
            answer = await stub.Heartbeat(other, timeout=60)
            assert answer.error_code in {error_code.UNKNOWN_MEMBER_ID, *AGAIN}
            codes.append(answer.error_code)
    assert clock.boot_ms() - failed_ms >= 3_000
    assert error_code.UNKNOWN_MEMBER_ID in codes
