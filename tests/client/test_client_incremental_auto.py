"""Members with `protocol="auto"`: incremental where the cluster and the group are, else classic."""

import asyncio
from typing import Any

import grpc
import muster
import muster_testing.node
import pytest
from client.client_scripted import Break, ScriptedCluster
from muster.assignors import BUILT_IN, Assignor
from muster.testing import LocalCluster
from muster_core.features import ALL_FEATURES, Feature
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, incremental_pb2

AUTO: muster.MemberSettings = {"protocol": "auto"}
DEFAULT: muster.MemberSettings = {}
CLASSIC: muster.MemberSettings = {"protocol": "classic"}
INCREMENTAL: muster.MemberSettings = {"protocol": "incremental"}


def member(connection: muster.Cluster, settings: muster.MemberSettings, **own: Any) -> muster.Member:
    return muster.Member(connection, **{"group_id": "g", "topics": "t", **settings, **own})


@pytest.fixture(params=[True, False], ids=["streams", "unary"])
def session(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("settings", [AUTO, DEFAULT], ids=["auto", "default"])
async def test_it_is_incremental_where_it_can_be(
    muster_cluster: LocalCluster, session: bool, settings: muster.MemberSettings
) -> None:
    async with muster_cluster as cluster:
        connection = cluster.connect()
        await connection.create_topic("t", 2)
        async with member(connection, settings, session=session) as one:
            await cluster.until(lambda: len(one.partitions) == 2)
            kept = one.token(one.partitions[0])
            async with member(connection, INCREMENTAL) as two:
                await cluster.until(lambda: len(one.partitions) == len(two.partitions) == 1)
            assert one.token(one.partitions[0]) == kept


@pytest.mark.parametrize(
    ("settings", "protocol"),
    [
        ({}, "auto"),
        ({"assignors": None}, "auto"),
        ({"assignors": ["range"]}, "classic"),
        ({"assignors": [Assignor("mine", BUILT_IN["sticky"].assign)]}, "classic"),
        ({"user_data": b"7"}, "classic"),
        ({"assignors": ["range"], "protocol": "auto"}, "auto"),
        ({"protocol": "incremental"}, "incremental"),
    ],
    ids=["none", "None", "named", "own", "data", "auto", "incremental"],
)
async def test_who_gives_an_assignor_has_a_classic_group_unless_it_says_otherwise(
    muster_cluster: LocalCluster, caplog: pytest.LogCaptureFixture, settings: Any, protocol: str
) -> None:
    """Nobody's assignor is passed over, and a line says what it costs."""
    caplog.set_level("INFO", "muster")
    async with muster_cluster as cluster:
        connection = cluster.connect()
        await connection.create_topic("t", 2)
        async with member(connection, settings) as one:
            assert one.config.protocol == protocol
            await cluster.until(lambda: len(one.partitions) == 2)
            (group,) = await connection.list_groups()
            assert (group.type == "consumer") is (protocol != "classic")
    assert ("with protocol='auto' it uses that in classic groups only" in caplog.text) is (
        protocol == "classic"
    )


@pytest.mark.parametrize(
    ("settings", "kind"),
    [({}, "consumer"), ({"assignors": ["range"]}, "classic"), ({"protocol": "classic"}, "classic")],
    ids=str,
)
async def test_the_default_of_run_is_that_of_a_member(
    muster_cluster: LocalCluster, settings: Any, kind: str
) -> None:
    async with (
        muster_cluster as cluster,
        cluster.worker(idle, group="g", topic="t", partitions=2, **settings) as one,
    ):
        await cluster.until(lambda: len(one.numbers) == 2)
        (group,) = await cluster.connect().list_groups()
        assert group.type == kind


@pytest.mark.parametrize("protocol", [None, "classic", "incremental"])
async def test_leaders_are_members_like_others(muster_cluster: LocalCluster, protocol: Any) -> None:
    async with muster_cluster as cluster:
        connection = cluster.connect()
        async with muster.lead("report", cluster=connection, protocol=protocol):
            (group,) = await connection.list_groups()
            assert group.type == ("classic" if protocol == "classic" else "consumer")


async def test_partitions_of_the_same_number_stay_together(muster_cluster: LocalCluster) -> None:
    """What the default assignor of classic members promises who works on several topics."""
    async with muster_cluster as cluster:
        connection = cluster.connect()
        for topic in ("orders", "payments"):
            await connection.create_topic(topic, 6)
        fleet = [member(connection, DEFAULT, topics=("orders", "payments")) for _ in range(3)]
        for one in fleet:
            await one.start()
        await cluster.until(lambda: all(len(one.partitions) == 4 for one in fleet))
        for one in fleet:
            numbers = {topic: {p.number for p in one.partitions if p.topic == topic} for topic in one.topics}
            assert numbers["orders"] == numbers["payments"]
            await one.close()


async def test_it_is_classic_in_a_cluster_without_the_feature(
    muster_cluster: LocalCluster, session: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(muster_testing.node, "ALL_FEATURES", ALL_FEATURES - {Feature.INCREMENTAL_GROUPS})
    async with muster_cluster as cluster:
        connection = cluster.connect()
        await connection.create_topic("t", 2)
        async with (
            member(connection, AUTO, session=session) as one,
            member(connection, CLASSIC) as two,
        ):
            await cluster.until(lambda: len(one.partitions) == len(two.partitions) == 1)
            await one.commit({one.partitions[0]: 3})
        alone = member(connection, INCREMENTAL)
        await alone.start()
        with pytest.raises(muster.GroupError, match="UNSUPPORTED_VERSION"):
            await alone.wait()


async def test_it_is_classic_at_a_server_that_does_not_know_the_call(cluster: ScriptedCluster) -> None:
    cluster.coordinators[0].script["ConsumerGroupHeartbeat"].append(unknown)
    async with muster.Cluster(cluster.address) as connection, member(connection, AUTO):
        await cluster.coordinators[0].until("SyncGroup")
    assert len(cluster.coordinators[0].requests("ConsumerGroupHeartbeat")) == 1


def unknown(_: Any) -> Any:
    raise Break(grpc.StatusCode.UNIMPLEMENTED)


async def test_it_is_a_classic_member_of_a_classic_group(muster_cluster: LocalCluster, session: bool) -> None:
    async with muster_cluster as cluster:
        connection = cluster.connect()
        await connection.create_topic("t", 2)
        async with member(connection, CLASSIC) as one:
            await cluster.until(lambda: len(one.partitions) == 2)
            async with member(connection, AUTO, session=session) as two:
                await cluster.until(lambda: len(one.partitions) == len(two.partitions) == 1)
                await two.commit({two.partitions[0]: 5})
            await cluster.until(lambda: len(one.partitions) == 2)
        async with member(connection, INCREMENTAL) as three:
            await cluster.until(lambda: len(three.partitions) == 2)


async def idle(_: muster.Partition) -> None:
    await asyncio.sleep(3_600)


async def test_one_that_was_removed_goes_with_the_group(muster_cluster: LocalCluster) -> None:
    async with muster_cluster as cluster:

        def worker(protocol: Any) -> Any:
            return cluster.worker(idle, group="g", topic="t", partitions=2, protocol=protocol)

        async with worker("auto") as one:
            await cluster.until(lambda: len(one.numbers) == 2)
            with cluster.drop_beats(one):
                await cluster.until(lambda: not one.numbers)
                await cluster.advance(60)
                async with worker("classic") as other:
                    await cluster.until(lambda: len(other.numbers) == 2)
                    one.link.mend()
                    await cluster.until(lambda: len(one.numbers) == len(other.numbers) == 1)


async def test_a_join_that_is_refused_again_and_again_is_made_ever_more_rarely(
    cluster: ScriptedCluster,
) -> None:
    gone = incremental_pb2.ConsumerGroupHeartbeatResponse(error_code=common_pb2.ERROR_CODE_UNKNOWN_MEMBER_ID)
    a = cluster.coordinators[0]
    a.script["ConsumerGroupHeartbeat"].extend([gone] * 1_000)
    async with (
        muster.Cluster(cluster.address) as connection,
        member(connection, INCREMENTAL, session=False),
    ):
        first, *_, fourth = [await a.until("ConsumerGroupHeartbeat", count) for count in range(1, 5)]
        assert fourth.member_seq == first.member_seq + 3, "each is a join of its own"
        await asyncio.sleep(0.3)
        assert len(a.requests("ConsumerGroupHeartbeat")) < 10


async def test_a_group_that_takes_it_in_neither_way_is_an_error(cluster: ScriptedCluster) -> None:
    other = coordinator_pb2.JoinGroupResponse(
        error_code=common_pb2.ERROR_CODE_INCONSISTENT_GROUP_PROTOCOL, error_message="another assignor"
    )
    is_classic = incremental_pb2.ConsumerGroupHeartbeatResponse(
        error_code=common_pb2.ERROR_CODE_GROUP_ID_NOT_FOUND
    )
    cluster.coordinators[0].script["JoinGroup"].extend([other] * 9)
    cluster.coordinators[0].script["ConsumerGroupHeartbeat"].extend([is_classic] * 2)
    async with muster.Cluster(cluster.address) as connection:
        one = member(connection, AUTO)
        await one.start()
        with pytest.raises(muster.GroupError, match="another assignor"):
            await one.wait()
        assert len(cluster.coordinators[0].requests("JoinGroup")) == 2
        later = member(connection, AUTO)  # the cluster does not have the feature: no other kind is tried
        await later.start()
        with pytest.raises(muster.GroupError, match="another assignor"):
            await later.wait()
        assert len(cluster.coordinators[0].requests("JoinGroup")) == 3


@pytest.mark.parametrize("turns", range(0, 40, 4))
async def test_a_member_that_closes_as_it_joins_leaves_no_id_for_which_others_wait(
    muster_cluster: LocalCluster, turns: int
) -> None:
    """SES-41: an id that was given out keeps a classic group's join phase open, as in Kafka."""
    async with muster_cluster as cluster:
        connection = cluster.connect()
        await connection.create_topic("t", 2)
        async with member(connection, CLASSIC) as one:
            await cluster.until(lambda: len(one.partitions) == 2)
            brief = member(connection, CLASSIC)
            await brief.start()
            for _ in range(turns):
                await asyncio.sleep(0)
            await brief.close()
            assert (await connection.describe_group("g")).unused_ids == 0
