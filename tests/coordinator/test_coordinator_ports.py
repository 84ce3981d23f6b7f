"""The port that a coordinator has for the other processes of its cluster, on real metadata."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from coordinator.coordinator_cluster import Caller, Coordinators, group_of, owns
from coordinator.real_cluster import on_one_node
from kit.waiting import until
from muster_coordinator.coordinator import Coordinator
from muster_coordinator.settings import CoordinatorSettings
from muster_core import error_code
from muster_metadata.cluster.lease_stream import request_problem
from muster_metadata.cluster.leases import LeaseObserver, LeaseRow
from muster_metadata.cluster.publisher import ViewPublisher
from muster_protos.muster.internal.v1 import coordinator_pb2 as peer_pb2
from muster_protos.muster.internal.v1 import coordinator_pb2_grpc as peer_pb2_grpc
from muster_protos.muster.internal.v1 import metadata_pb2, process_pb2, process_pb2_grpc
from muster_protos.muster.v1 import coordinator_pb2, coordinator_pb2_grpc, discovery_pb2
from muster_runtime.addresses import Address
from muster_runtime.errors import StartupError
from muster_runtime.settings import SettingsError, load

SHARDS = 8
ANYWHERE = Address("127.0.0.1", 0)
APART: dict[str, Any] = {"internal_listen": ANYWHERE, "internal_on_public": False}
"""Internal calls are answered on a port of their own, and nowhere else."""
BOTH: dict[str, Any] = {"internal_listen": ANYWHERE}
"""On a port of their own, and where coordinators of the version before make them."""
AS_BEFORE: dict[str, Any] = {}
"""As a coordinator of the version before: where clients connect."""


@pytest.fixture
async def cluster() -> AsyncIterator[Coordinators]:
    async with on_one_node(SHARDS) as coordinators:
        yield coordinators


async def codes(address: Address | None) -> dict[str, str]:
    """How each kind of call is answered at an address."""
    async with grpc.aio.insecure_channel(str(address)) as channel:
        peer: Any = peer_pb2_grpc.CoordinatorPeerServiceStub(channel)
        process: Any = process_pb2_grpc.ProcessServiceStub(channel)
        group: Any = coordinator_pb2_grpc.GroupCoordinatorServiceStub(channel)
        calls = {
            "peer": peer.DescribeFaults(peer_pb2.DescribeFaultsRequest(), timeout=60),
            "process": process.DescribeProcess(process_pb2.DescribeProcessRequest(), timeout=60),
            "client": group.ListGroups(coordinator_pb2.ListGroupsRequest(), timeout=60),
        }
        return {name: (await call.code()).name for name, call in calls.items()}


def internal_address(coordinator: Coordinator) -> Address:
    address = coordinator.internal_address
    assert address is not None
    return address


@pytest.mark.cluster
async def test_internal_calls_are_answered_on_a_port_of_their_own_alone(cluster: Coordinators) -> None:
    only = await cluster.add("a", **APART)
    await owns(only, SHARDS)
    assert await codes(only.address) == {"peer": "UNIMPLEMENTED", "process": "UNIMPLEMENTED", "client": "OK"}
    assert await codes(internal_address(only)) == {"peer": "OK", "process": "OK", "client": "UNIMPLEMENTED"}


@pytest.mark.cluster
async def test_for_one_version_more_they_are_answered_in_the_old_place_too(cluster: Coordinators) -> None:
    only = await cluster.add("a", **BOTH)
    await owns(only, SHARDS)
    assert await codes(only.address) == {"peer": "OK", "process": "OK", "client": "OK"}
    assert await codes(internal_address(only)) == {"peer": "OK", "process": "OK", "client": "UNIMPLEMENTED"}


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("leaving", "staying"),
    [(APART, APART), (BOTH, AS_BEFORE), (AS_BEFORE, APART), (AS_BEFORE, AS_BEFORE)],
    ids=["both apart", "to one of the version before", "from one of the version before", "as before"],
)
async def test_shards_are_handed_over_whatever_ports_the_two_have(
    cluster: Coordinators, leaving: dict[str, Any], staying: dict[str, Any]
) -> None:
    """A drain that had to give its shards up unasked would take all of its limit, ten minutes here."""
    first = await cluster.add("a", drain_limit_ms=600_000, linger_ms=0, **leaving)
    await owns(first, SHARDS)
    caller = Caller(first)
    joined = await caller.join(group_of(0, shards=SHARDS))
    assert (await caller.sync(group_of(0, shards=SHARDS), joined)).error_code == error_code.NONE
    second = await cluster.add("b", settle_ms=3_600_000, **staying)
    await first.drain_and_stop()
    await owns(second, SHARDS)
    heard = await Caller(second).heartbeat(group_of(0, shards=SHARDS), joined)
    assert heard.error_code == error_code.NONE
    await caller.close()


@pytest.mark.cluster
async def test_health_is_answered_on_both_ports_alike(cluster: Coordinators) -> None:
    only = await cluster.add("a", **APART)
    await owns(only, SHARDS)
    for address in (only.address, internal_address(only)):
        async with grpc.aio.insecure_channel(str(address)) as channel:
            check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")

            async def serving(check: Any = check) -> bool:
                return bool(await check(b"", timeout=60) == b"\x08\x01")

            await until(serving, f"{address} serves")


def settings(monkeypatch: pytest.MonkeyPatch, **values: str) -> CoordinatorSettings:
    for name, value in values.items():
        monkeypatch.setenv(f"MUSTER_COORDINATOR_{name.upper()}", value)
    return load(CoordinatorSettings)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (
            {"internal_on_public": "false"},
            "MUSTER_COORDINATOR_INTERNAL_ON_PUBLIC=false needs MUSTER_COORDINATOR_INTERNAL_LISTEN",
        ),
        (
            {"internal_advertise": "here:1"},
            "MUSTER_COORDINATOR_INTERNAL_ADVERTISE needs MUSTER_COORDINATOR_INTERNAL_LISTEN",
        ),
        (
            {"listen": "127.0.0.1:7410", "internal_listen": "127.0.0.1:7410"},
            "MUSTER_COORDINATOR_INTERNAL_LISTEN=127.0.0.1:7410 is the address of MUSTER_COORDINATOR_LISTEN",
        ),
    ],
)
def test_settings_under_which_nobody_could_make_internal_calls_are_refused(
    values: dict[str, str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(monkeypatch, **values)
    assert problem in str(caught.value)


def test_an_internal_address_that_nobody_could_connect_to_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    own = settings(monkeypatch, internal_listen="0.0.0.0:7480")
    with pytest.raises(StartupError) as caught:
        Coordinator(own)
    assert "MUSTER_COORDINATOR_INTERNAL_LISTEN is every address of this machine" in str(caught.value)
    assert "MUSTER_COORDINATOR_INTERNAL_ADVERTISE" in str(caught.value)


def test_others_are_told_the_host_that_is_advertised_or_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"advertise": "10.0.0.7:7410", "internal_listen": "0.0.0.0:7480"}
    own = settings(monkeypatch, **values)
    address = Coordinator(own).internal_address
    assert address is not None
    assert address.host == "10.0.0.7"
    own = settings(monkeypatch, **values, internal_advertise="c-1.inside:9")
    assert Coordinator(own).internal_address == Address("c-1.inside", 9)


LEASE: dict[str, Any] = {"node_id": "c", "session": "s", "host": "h", "port": 1}


@pytest.mark.parametrize(
    ("host", "port", "accepted"),
    [
        ("", 0, True),
        ("i", 65_535, True),
        ("i" * 255, 1, True),
        ("i" * 256, 1, False),
        ("i", 65_536, False),
        ("i", 0, False),
        ("", 1, False),
    ],
)
def test_a_lease_names_an_internal_address_whole_or_not_at_all(host: str, port: int, accepted: bool) -> None:
    request = metadata_pb2.LeaseRequest(**LEASE, internal_host=host, internal_port=port)
    problem = request_problem(request, SHARDS)
    assert (problem == "") is accepted
    assert (
        accepted or "internal_host must have 1 to 255 bytes and internal_port must be 1 to 65535" in problem
    )


def test_a_lease_row_of_the_version_before_has_no_internal_address() -> None:
    row = LeaseRow("c", "s", 1, 1, "h", 1, internal_host="i", internal_port=2)
    assert LeaseRow.from_json(row.to_json().encode()) == row
    before = b'{"node_id": "c", "session": "s", "run": 1, "counter": 1, "host": "h", "port": 1}'
    assert LeaseRow.from_json(before).internal_port == 0


async def test_watchers_are_told_of_an_internal_address_that_is_all_that_changed() -> None:
    view = ViewPublisher(LeaseObserver(2_000), lambda: 1_000)
    view.known("cluster", 1)
    messages = view.watch()

    async def told(row: LeaseRow) -> list[metadata_pb2.InternalAddress]:
        view.observer.put(row, 1_000)
        view.refresh()
        message = await anext(messages)
        assert [node.state for node in message.cluster.coordinators] == [discovery_pb2.COORDINATOR_STATE_LIVE]
        return list(message.internal_addresses)

    row = LeaseRow("c", "s", 1, 1, "h", 1)
    assert await told(row) == []
    for port in (7, 8):
        row = LeaseRow("c", "s", 1, 1 + port, "h", 1, internal_host="i", internal_port=port)
        assert await told(row) == [metadata_pb2.InternalAddress(node_id="c", host="i", port=port)]
