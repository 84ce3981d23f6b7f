"""Members of incremental groups make calls to coordinators on the real log."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from coordinator.coordinator_cluster import Caller, MemoryCluster, group_of, owns
from coordinator.incremental_caller import AWAY, LEAVE, IncrementalCaller, settled
from coordinator.real_cluster import SHARDS, RealCluster
from coordinator.session_client import stable
from coordinator.test_coordinator_metrics import counted
from kit.callers_by_header import NamedCallers
from kit.waiting import until
from muster_coordinator.coordinator import Coordinator
from muster_core import error_code
from muster_core.features import FEATURE_NAMES, Feature
from muster_protos.muster.internal.v1 import coordinator_pb2 as peer_pb2
from muster_protos.muster.internal.v1 import coordinator_pb2_grpc as peer_pb2_grpc
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.v1 import coordinator_pb2, discovery_pb2, incremental_pb2
from muster_protos.muster.v1.group_settings_pb2 import AlterGroupSettingsRequest, GroupSettings

pytestmark = pytest.mark.cluster

GROUP = group_of(0, 0, SHARDS)
PARTITIONS = 4
OLDER = tuple(name for name in FEATURE_NAMES if name != Feature.INCREMENTAL_GROUPS)
RULES = """
[[rule]]
who = ["owner", "thief", "blind"]
verbs = ["join", "commit", "read", "describe"]
groups = ["*"]

[[rule]]
who = ["owner", "thief"]
verbs = ["describe"]
topics = ["*"]
"""


async def with_topic(single: RealCluster, coordinator: Coordinator, name: str = "t") -> None:
    """Makes a topic, and waits until the coordinator knows it."""
    await single.change_topic(create=discovery_pb2.Topic(name=name, partitions=PARTITIONS))
    await until(lambda: name in topics_of(coordinator))


def topics_of(coordinator: Coordinator) -> set[str]:
    parts = coordinator._parts
    assert parts is not None
    return set() if parts.view.catalog is None else {topic.name for topic in parts.view.catalog.topics}


async def begun(single: RealCluster, **settings: Any) -> Coordinator:
    """A coordinator that owns everything and knows topic `t`."""
    coordinator = await single.add("a", **settings)
    await owns(coordinator, SHARDS)
    await with_topic(single, coordinator)
    return coordinator


async def described(caller: Caller, *group_ids: str) -> list[Any]:
    request = incremental_pb2.ConsumerGroupDescribeRequest(group_ids=group_ids)
    answer = await caller.stub.ConsumerGroupDescribe(request, timeout=60)
    return list(answer.groups)


async def joined(caller: Caller, *others: IncrementalCaller, **fields: Any) -> IncrementalCaller:
    """One member more, after everybody has all of its share."""
    member = IncrementalCaller(caller, GROUP, **fields)
    assert not (await member.join()).error_code
    await settled(*others, member)
    return member


async def test_only_what_moves_changes_its_owner_and_a_next_coordinator_goes_on(single: RealCluster) -> None:
    first = await begun(single)
    caller = single.caller(first)
    one = await joined(caller)
    before = dict(one.owned)
    assert len(before) == PARTITIONS
    two = await joined(caller, one)
    assert len(one.owned) == len(two.owned) == PARTITIONS // 2
    assert one.owned.items() <= before.items()
    assert all(token > before[partition] for partition, token in two.owned.items())

    second = await single.add("b")
    await first.drain_and_stop()
    await owns(second, SHARDS)
    tokens = dict(two.owned)
    one.caller = two.caller = single.caller(second)
    await settled(one, two)
    assert two.owned == tokens
    assert (await one.leave()).member_epoch == LEAVE
    await settled(two)
    assert len(two.owned) == PARTITIONS
    assert tokens.items() <= two.owned.items()


async def test_a_group_is_described_with_what_each_has_gives_back_and_should_have(
    single: RealCluster,
) -> None:
    caller = single.caller(await begun(single))
    one = await joined(caller, group_instance_id="i")
    two = IncrementalCaller(caller, GROUP)
    await two.join()
    await one.beat()  # is told what to give back, and has not
    group, missing = await described(caller, GROUP, "missing")
    assert missing.error_code == error_code.GROUP_ID_NOT_FOUND
    assert (group.state, group.server_assignor) == ("Reconciling", "uniform")
    assert (group.group_epoch, group.assignment_epoch) == (2, 2)
    members = {member.member_id: member for member in group.members}
    assert members[one.member_id].group_instance_id == "i"
    assert members[one.member_id].host == "127.0.0.1"
    assert [(some.topic, len(some.partitions)) for some in members[one.member_id].revoking] == [("t", 2)]
    assert [(some.topic, len(some.partitions)) for some in members[two.member_id].target] == [("t", 2)]
    assert not members[two.member_id].assigned


@pytest.mark.row("HQ-22")
async def test_a_coordinator_that_does_not_own_the_group_names_the_owner(single: RealCluster) -> None:
    first = await begun(single, settle_ms=3_600_000)
    second = await single.add("b", settle_ms=3_600_000)
    await until(lambda: second._parts is not None and second._parts.ownership.owner_elsewhere(0) is not None)
    member = IncrementalCaller(single.caller(second), GROUP)
    answer = await member.join()
    assert answer.error_code == error_code.NOT_COORDINATOR
    assert answer.coordinator.port == first.address.port
    (group,) = await described(single.caller(second), GROUP)
    assert group.error_code == error_code.NOT_COORDINATOR


async def test_a_static_member_that_is_away_keeps_its_share_for_its_next_process(single: RealCluster) -> None:
    caller = single.caller(await begun(single))
    one = await joined(caller, group_instance_id="i")
    another = IncrementalCaller(caller, GROUP, group_instance_id="i")
    refused = await another.join()
    assert refused.error_code == error_code.UNRELEASED_INSTANCE_ID
    assert (await one.leave(AWAY)).member_epoch == AWAY
    assert not (await another.join(replaces=refused.holder)).error_code
    await settled(another)
    assert another.owned.keys() == one.owned.keys()
    assert (await one.beat()).error_code == error_code.FENCED_INSTANCE_ID


@pytest.mark.row("MG-01")
@pytest.mark.row("MG-02")
async def test_kinds_meet_and_an_empty_group_changes_its_kind_and_keeps_its_offsets(
    single: RealCluster,
) -> None:
    caller = single.caller(await begun(single))
    classic = await caller.join(GROUP)
    await caller.sync(GROUP, classic)
    member = IncrementalCaller(caller, GROUP)
    assert (await member.join()).error_code == error_code.GROUP_ID_NOT_FOUND
    assert await caller.commit(GROUP, 7, classic) == error_code.NONE
    leaver = coordinator_pb2.LeaveGroupRequest.Member(member_id=classic.member_id)
    await caller.stub.LeaveGroup(
        coordinator_pb2.LeaveGroupRequest(group_id=GROUP, members=[leaver]), timeout=60
    )
    assert not (await member.join()).error_code
    await settled(member)
    assert member.epoch > classic.generation
    assert await caller.fetch(GROUP) == [(error_code.NONE, 7)]
    assert (await caller.join(GROUP)).error_code == error_code.INCONSISTENT_GROUP_PROTOCOL
    assert await member.commit(8, ("t", 0)) == error_code.NONE
    await member.leave()
    again = await caller.join(GROUP)
    assert again.error_code == error_code.NONE
    assert again.generation > member.epoch
    assert await caller.fetch(GROUP) == [(error_code.NONE, 8)]


async def test_before_the_feature_is_on_nothing_is_written_and_then_it_is(tmp_path: Path) -> None:
    single = RealCluster(tmp_path, features=OLDER)
    await single.start()
    try:
        coordinator = await begun(single)
        member = IncrementalCaller(single.caller(coordinator), GROUP)
        assert (await member.join()).error_code == error_code.UNSUPPORTED_VERSION
        kinds = {record.WhichOneof("kind") for record in await single.log(0)}
        assert not kinds & {"member_subscribed", "epoch_raised", "target_assigned", "member_stepped"}
        request = metadata_pb2.EnableFeatureRequest(name=Feature.INCREMENTAL_GROUPS)
        await single.stub.EnableFeature(request, timeout=60)

        async def is_served() -> bool:
            return not (await member.join()).error_code

        await until(is_served, "the coordinator has heard of it")
        await settled(member)
        assert len(member.owned) == PARTITIONS
    finally:
        await single.stop()


async def test_settings_wait_for_their_feature_and_are_read_by_the_next_owner(tmp_path: Path) -> None:
    """INC-120: before, a server of yesterday may be asked to read the log."""
    single = RealCluster(
        tmp_path, features=[name for name in FEATURE_NAMES if name != Feature.GROUP_SETTINGS]
    )
    await single.start()
    try:
        first = await begun(single)
        wanted = AlterGroupSettingsRequest(group_id=GROUP, set=GroupSettings(assignor="range"))
        refused = await single.caller(first).stub.AlterGroupSettings(wanted, timeout=60)
        assert refused.error_code == error_code.UNSUPPORTED_VERSION
        kinds = {record.WhichOneof("kind") for record in await single.log(0)}
        assert "group_settings_altered" not in kinds
        request = metadata_pb2.EnableFeatureRequest(name=Feature.GROUP_SETTINGS)
        await single.stub.EnableFeature(request, timeout=60)

        async def is_altered() -> bool:
            return not (await single.caller(first).stub.AlterGroupSettings(wanted, timeout=60)).error_code

        await until(is_altered, "the coordinator has heard of it")
        (record,) = [one for one in await single.log(0) if one.HasField("group_settings_altered")]
        assert record.critical

        second = await single.add("b")
        await first.drain_and_stop()
        await owns(second, SHARDS)
        await joined(single.caller(second))
        (group,) = await described(single.caller(second), GROUP)
        assert group.server_assignor == "range"
    finally:
        await single.stop()


@pytest.fixture
async def of_owner(single: RealCluster, tmp_path: Path) -> tuple[Coordinator, IncrementalCaller]:
    """A member of `owner`, with a secret, where rules are."""
    file = tmp_path / "access.toml"
    file.write_text(RULES)
    coordinator = await begun(single, trust=NamedCallers.with_rules(file))
    fields = {"member_secret": b"s" * 16, "group_instance_id": "i"}
    return coordinator, await joined(single.caller(coordinator, "owner"), **fields)


@pytest.mark.row("GS-14")
async def test_who_may_not_see_a_topic_of_a_group_is_not_shown_the_group(
    single: RealCluster, of_owner: tuple[Coordinator, IncrementalCaller]
) -> None:
    coordinator, _ = of_owner
    for who, code in (("owner", error_code.NONE), ("blind", error_code.TOPIC_AUTHORIZATION_FAILED)):
        (group,) = await described(single.caller(coordinator, who), GROUP)
        assert (group.group_id, group.error_code) == (GROUP, code)
        assert (len(group.members), group.group_epoch > 0) == ((1, True) if not code else (0, False))


@pytest.mark.row("RX-07")
async def test_an_expression_matches_nothing_that_its_member_may_not_see(
    single: RealCluster, of_owner: tuple[Coordinator, IncrementalCaller]
) -> None:
    coordinator, _ = of_owner
    blind, seeing = (
        IncrementalCaller(single.caller(coordinator, who), f"{GROUP}-{who}") for who in ("blind", "owner")
    )
    for member in (blind, seeing):
        assert not (await member.join((), topic_regex=".*", member_secret=b"s" * 16)).error_code
    async with asyncio.timeout(60):
        while not seeing.owned:
            assert not (await seeing.beat(member_secret=b"s" * 16)).error_code
    for _ in range(3):  # what both match was looked up in order
        assert not (await blind.beat(member_secret=b"s" * 16)).error_code
    assert not blind.owned
    late = IncrementalCaller(single.caller(coordinator, "blind"), seeing.group_id)
    answer = await late.join((), topic_regex=".*")
    assert answer.error_code == error_code.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.row("HQ-02")
@pytest.mark.row("HQ-03")
async def test_who_may_not_join_a_group_or_see_a_topic_is_refused(
    single: RealCluster, of_owner: tuple[Coordinator, IncrementalCaller]
) -> None:
    coordinator, _ = of_owner
    for who, code in (
        ("", error_code.GROUP_AUTHORIZATION_FAILED),
        ("blind", error_code.TOPIC_AUTHORIZATION_FAILED),
    ):
        assert (await IncrementalCaller(single.caller(coordinator, who), GROUP).join()).error_code == code
    (group,) = await described(single.caller(coordinator, "stranger"), GROUP)
    assert group.error_code == error_code.GROUP_AUTHORIZATION_FAILED
    assert not group.members


async def test_a_member_is_its_identitys_and_its_secrets_alone(
    single: RealCluster, of_owner: tuple[Coordinator, IncrementalCaller]
) -> None:
    coordinator, member = of_owner
    owned = dict(member.owned)
    owner = member.caller
    member.caller = single.caller(coordinator, "thief")
    for answer in (await member.beat(), await member.leave(), await member.beat(member_epoch=0)):
        assert answer.error_code == error_code.UNKNOWN_MEMBER_ID
    newcomer = IncrementalCaller(member.caller, GROUP, group_instance_id="i")
    assert (await newcomer.join()).error_code == error_code.FENCED_INSTANCE_ID
    assert await member.commit(1, ("t", 0)) == error_code.UNKNOWN_MEMBER_ID

    member.caller = owner
    for secret in (b"", b"t" * 16):
        assert (await member.beat(member_secret=secret)).error_code == error_code.UNKNOWN_MEMBER_ID
        assert await member.commit(1, ("t", 0), member_secret=secret) == error_code.UNKNOWN_MEMBER_ID
    await settled(member)
    assert member.owned == owned
    assert await member.commit(1, ("t", 0)) == error_code.NONE


async def test_what_breaks_the_limits_is_refused_with_its_field(single: RealCluster) -> None:
    caller = single.caller(await begun(single))
    member = IncrementalCaller(caller, GROUP)
    wrong: list[dict[str, Any]] = [
        {"process_id": b"short"},
        {"topics": None, "topic_regex": "x" * 1_025},
        {"rack_id": "x" * 256},
    ]
    for fields in wrong:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await member.join(**fields)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert list(fields)[-1] in str(refused.value.details())


@pytest.mark.row("GE-27")
async def test_groups_and_members_of_this_kind_are_counted(cluster: MemoryCluster) -> None:
    group_id = group_of(0)
    async with counted(cluster) as one:
        members = [IncrementalCaller(one.caller, group_id) for _ in range(2)]
        for member in members:
            assert not (await member.join()).error_code
        await settled(*members)
        await members[1].leave()
        numbers = await one.read()
    assert numbers.value("muster_members_joined_total") == 2
    assert numbers.value("muster_members_left_total", cause="member_left") == 1
    assert numbers.value("muster_rebalances_total", cause="member_joined") == 2
    assert numbers.value("muster_members", kind="dynamic") == 1
    assert numbers.value("muster_groups", state="Assigning") == 1


async def test_libraries_of_members_of_both_kinds_are_counted_for_operators(single: RealCluster) -> None:
    coordinator = await begun(single)
    caller = single.caller(coordinator)
    await joined(caller, client_version="muster-python/7")
    member = await stable(caller, group_of(1, 0, SHARDS))
    peer: Any = peer_pb2_grpc.CoordinatorPeerServiceStub(caller.channel)
    answer = await peer.DescribeFaults(peer_pb2.DescribeFaultsRequest(), timeout=60)
    found = {client.client_version: (client.members, client.member_id) for client in answer.clients}
    assert found["muster-python/7"][0] == 1
    assert found[""] == (1, member.member_id), "the classic one did not say"
    too_long = IncrementalCaller(caller, GROUP, client_version="v" * 65)
    with pytest.raises(grpc.aio.AioRpcError, match="client_version: must be at most 64 bytes"):
        await too_long.join()


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        (["x"] * 17, "classic_protocols: must have 0 to 16 items"),
        (["range", "range"], r"classic_protocols\[1\]: must not be given twice"),
        (["range", ""], r"classic_protocols\[1\]: must be 1 to 255 bytes long"),
        (["x" * 256], r"classic_protocols\[0\]: must be at most 255 bytes"),
    ],
)
async def test_what_a_member_can_use_in_a_classic_group_is_bounded(
    single: RealCluster, names: list[str], fault: str
) -> None:
    coordinator = await begun(single)
    caller = single.caller(coordinator)
    member = IncrementalCaller(caller, GROUP, classic_protocols=names)
    with pytest.raises(grpc.aio.AioRpcError, match=fault):
        await member.join()


@pytest.mark.row("HQ-08")
async def test_calls_that_kafka_takes_are_judged_by_the_core_and_not_by_their_form(
    single: RealCluster,
) -> None:
    """A topic that is named twice is named once; an empty group id has an error of its own."""
    coordinator = await begun(single)
    caller = single.caller(coordinator)
    member = IncrementalCaller(caller, GROUP)
    assert not (await member.join(("t", "t"))).error_code
    await settled(member)
    assert len(member.owned) == PARTITIONS
    nowhere = IncrementalCaller(caller, "")
    assert (await nowhere.join()).error_code == error_code.INVALID_REQUEST


async def test_holds_are_told_to_operators(single: RealCluster) -> None:
    coordinator = await begun(single)
    caller = single.caller(coordinator)
    first = await joined(caller)
    newcomer = IncrementalCaller(caller, GROUP)
    assert not (await newcomer.join(rollout_hold_ms=3_600_000)).error_code
    await settled(first, newcomer)
    peer: Any = peer_pb2_grpc.CoordinatorPeerServiceStub(caller.channel)

    async def holds() -> list[peer_pb2.DescribeFaultsResponse.Hold]:
        answer = await peer.DescribeFaults(peer_pb2.DescribeFaultsRequest(), timeout=60)
        return list(answer.holds)

    (found,) = await holds()
    assert (found.group_id, found.member_id) == (GROUP, newcomer.member_id)
    assert found.until_ms - found.began_ms == 3_600_000
    assert (found.members, found.idle) == (2, 1)
    alter = AlterGroupSettingsRequest(group_id=GROUP, set=GroupSettings(hold=True))
    assert not (await caller.stub.AlterGroupSettings(alter, timeout=60)).error_code
    (found,) = await holds()
    assert (found.member_id, found.until_ms) == ("", 0), "the setting outlives the hold of a member"
    alter = AlterGroupSettingsRequest(group_id=GROUP, set=GroupSettings(hold=False))
    assert not (await caller.stub.AlterGroupSettings(alter, timeout=60)).error_code
    await settled(first, newcomer)
    assert await holds() == []
