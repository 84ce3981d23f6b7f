"""Whom a member's host is read from, with and without proxies."""

import pytest
from coordinator.coordinator_cluster import Caller, group_of, owns
from coordinator.real_cluster import SHARDS, RealCluster
from muster_coordinator.settings import CoordinatorSettings
from muster_core import error_code
from muster_protos.muster.v1 import coordinator_pb2
from muster_runtime.settings import SettingsError, load

pytestmark = pytest.mark.cluster

JOIN = coordinator_pb2.JoinGroupRequest(
    group_id=group_of(1, 0, SHARDS),
    protocol_type="consumer",
    protocols=[coordinator_pb2.GroupProtocol(name="range", metadata=b"m")],
    session_timeout_ms=10_000,
    rebalance_timeout_ms=10_000,
    group_instance_id="worker",
)


async def host_of_member(caller: Caller, forwarded: str) -> str:
    """The host that a coordinator notes for a member whose call says that it was forwarded."""
    headers = [("x-forwarded-for", forwarded)] if forwarded else []
    joined = await caller.stub.JoinGroup(JOIN, timeout=60, metadata=headers)
    assert joined.error_code == error_code.NONE
    described = await caller.stub.DescribeGroups(
        coordinator_pb2.DescribeGroupsRequest(group_ids=[JOIN.group_id])
    )
    [member] = described.groups[0].members
    return str(member.host)


@pytest.mark.parametrize(
    ("forwarded", "host"),
    [
        ("", "127.0.0.1"),
        (f"fe80::1%{'x' * 5_000}", "127.0.0.1"),
        ("203.0.113.9", "203.0.113.9"),
        ("198.51.100.1, 203.0.113.9, 10.1.2.3", "203.0.113.9"),
        ("2001:db8::7", "2001:db8::7"),
        ("198.51.100.1, unknown", "127.0.0.1"),
        ("203.0.113.9,, 10.1.2.3", "10.1.2.3"),
    ],
)
async def test_a_trusted_proxy_says_on_which_host_a_member_runs(
    single: RealCluster, forwarded: str, host: str
) -> None:
    only = await single.add("a", trusted_proxies="127.0.0.0/8,10.0.0.0/8")
    await owns(only, SHARDS)
    assert await host_of_member(single.caller(only), forwarded) == host


async def test_what_anybody_else_says_of_itself_is_ignored(single: RealCluster) -> None:
    only = await single.add("a", trusted_proxies="10.0.0.0/8")
    await owns(only, SHARDS)
    assert await host_of_member(single.caller(only), "203.0.113.9") == "127.0.0.1"


@pytest.mark.parametrize("value", ["10.0.0.1/8", "proxy.example", ",".join(["10.0.0.1"] * 101)])
def test_a_wrong_network_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("MUSTER_COORDINATOR_TRUSTED_PROXIES", value)
    with pytest.raises(SettingsError, match="MUSTER_COORDINATOR_TRUSTED_PROXIES"):
        load(CoordinatorSettings)
