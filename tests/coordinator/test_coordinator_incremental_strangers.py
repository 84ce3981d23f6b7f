"""What strangers get who call for members, groups and settings of incremental groups, over real connections.

Each attack is made as a plain call and on a session stream, by another identity, by one that may join the
group and no more, and by who has no identity and knows all but the secret. The member notices nothing, and
the log has no record of it.
"""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from coordinator.coordinator_cluster import Caller, owns
from coordinator.incremental_caller import AWAY, JOIN, LEAVE, IncrementalCaller, settled
from coordinator.real_cluster import SHARDS, RealCluster
from coordinator.session_client import Session, call
from coordinator.test_coordinator_incremental import GROUP, PARTITIONS, begun, described
from kit.callers_by_header import NamedCallers
from kit.waiting import until
from muster_coordinator.coordinator import Coordinator
from muster_core import error_code
from muster_core.incremental.partitions import by_topic
from muster_protos.muster.v1 import coordinator_pb2, incremental_pb2, session_pb2
from muster_protos.muster.v1.group_conversion_pb2 import (
    GROUP_KIND_CLASSIC,
    GROUP_KIND_INCREMENTAL,
    ConvertGroupRequest,
)
from muster_protos.muster.v1.group_settings_pb2 import AlterGroupSettingsRequest, GroupSettings
from structlog.testing import capture_logs

pytestmark = pytest.mark.cluster

SECRET = b"known to it alone"
UNKNOWN = error_code.UNKNOWN_MEMBER_ID
NO_GROUP = error_code.GROUP_AUTHORIZATION_FAILED
RULES = """
[[rule]]
who = ["owner", "neighbour"]
verbs = ["join", "commit", "read"]
groups = ["*"]

[[rule]]
who = ["owner", "neighbour", "stranger"]
verbs = ["describe"]
topics = ["*"]

[[rule]]
who = ["operator"]
verbs = ["admin"]
cluster = true
"""


class Scene(NamedTuple):
    """A member that has everything, with a secret, and its coordinator."""

    cluster: RealCluster
    coordinator: Coordinator
    member: IncrementalCaller

    def caller(self, who: str) -> Caller:
        return self.cluster.caller(self.coordinator, who)

    def request(self, epoch: int, **fields: Any) -> incremental_pb2.ConsumerGroupHeartbeatRequest:
        """A request in the member's name, with all that a stranger can read of it in a description."""
        names = incremental_pb2.ConsumerGroupHeartbeatRequest.TopicNames(names=["t"])
        usual: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": self.member.member_id,
            "member_epoch": epoch,
            "member_seq": 1,
            "process_id": bytes(16),
            "group_instance_id": "i",
            "topics": names,
            "rebalance_timeout_ms": 30_000,
        }
        request = incremental_pb2.ConsumerGroupHeartbeatRequest(**usual | fields)
        if epoch >= 0:
            request.owned.SetInParent()
            request.owned.topics.extend(by_topic(self.member.owned if epoch else ()))
        return request

    def forged(self) -> dict[str, incremental_pb2.ConsumerGroupHeartbeatRequest]:
        """Requests in the member's name, by what they are to bring about."""
        epoch = self.member.epoch
        return {
            "a beat": self.request(epoch),
            "a beat without numbers": self.request(epoch, member_seq=0, process_id=b""),
            "giving up everything": self.request(epoch, owned=None),
            "its next join": self.request(JOIN, member_seq=99),
            "a join with the most of the work": self.request(JOIN, member_seq=99, weight=100),
            "a join that holds moves back": self.request(JOIN, member_seq=99, rollout_hold_ms=3_600_000),
            "a leave": self.request(LEAVE, leave_reason="says a stranger"),
            "a leave without numbers": self.request(LEAVE, member_seq=0, process_id=b""),
            "a leave for a while": self.request(AWAY),
            "the secret of another": self.request(epoch, member_secret=b"of somebody else"),
            "an early leave by a later join": self.request(LEAVE, member_seq=99),
        }

    def commit(self, **fields: Any) -> coordinator_pb2.OffsetCommitRequest:
        """A commit in the member's name, with its tokens."""
        usual: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": self.member.member_id,
            "member_epoch": self.member.epoch,
        }
        request = coordinator_pb2.OffsetCommitRequest(**usual | fields)
        request.topics.add(name="t").partitions.add(
            partition=0, offset=10**15, token=self.member.owned["t", 0].to_proto()
        )
        return request

    async def records(self) -> list[str]:
        """Kinds of the records in the group's log."""
        return [record.WhichOneof("kind") or "" for record in await self.cluster.log(0)]


@pytest.fixture(params=["identities", "secrets"])
async def scene(request: pytest.FixtureRequest, single: RealCluster, tmp_path: Path) -> tuple[Scene, str]:
    """A scene, and who attacks: another identity that may join as well; or nobody in particular."""
    file = tmp_path / "access.toml"
    file.write_text(RULES)
    by_identity = request.param == "identities"
    coordinator = await begun(single, trust=NamedCallers.with_rules(file if by_identity else None))
    await owns(coordinator, SHARDS)
    owner = single.caller(coordinator, "owner" if by_identity else "")
    # the instance id has to be in each request of it
    member = IncrementalCaller(owner, GROUP, member_secret=SECRET, group_instance_id="i")
    assert not (await member.join(can_be_classic=True, classic_protocols=["range"])).error_code
    await settled(member)
    assert len(member.owned) == PARTITIONS
    return Scene(single, coordinator, member), "neighbour" if by_identity else ""


async def test_who_may_not_see_its_topic_any_more_is_no_member(single: RealCluster, tmp_path: Path) -> None:
    """Neither by calls that name no topics, nor by beats of a stream."""
    file = tmp_path / "access.toml"
    file.write_text(RULES)
    coordinator = await begun(single, trust=NamedCallers.with_rules(file))
    await owns(coordinator, SHARDS)
    owner = single.caller(coordinator, "owner")
    by_calls = IncrementalCaller(owner, GROUP)
    assert not (await by_calls.join()).error_code
    session = await Session(owner.channel).hello()
    joining = incremental_pb2.ConsumerGroupHeartbeatRequest(
        group_id="other", member_id="m" * 20, member_seq=1, process_id=bytes(16), rebalance_timeout_ms=30_000
    )
    joining.topics.names.append("t")
    joining.owned.SetInParent()
    frame = session_pb2.ClientFrame(
        call=session_pb2.Call(call_id=1, consumer_group_heartbeat=joining, connection=1)
    )
    await session.send(frame)
    (reply,) = await session.until(lambda: session.said("reply"))
    assert not reply.consumer_group_heartbeat.error_code
    assert not (await session.beat()).unheard
    assert not (await by_calls.beat()).error_code

    file.write_text(RULES.replace('["owner", "neighbour", "stranger"]', '["neighbour"]'))

    async def unheard() -> list[tuple[str, int]]:
        return [(missed.group_id, missed.error_code) for missed in (await session.beat()).unheard]

    assert await until(unheard) == [("other", NO_GROUP)]
    for _ in range(2):
        assert (await by_calls.beat()).error_code == error_code.TOPIC_AUTHORIZATION_FAILED
    neighbour = IncrementalCaller(single.caller(coordinator, "neighbour"), GROUP)
    neighbour.member_id, neighbour.epoch = by_calls.member_id, by_calls.epoch
    assert (await neighbour.beat()).error_code == UNKNOWN
    assert (await by_calls.beat()).error_code == error_code.TOPIC_AUTHORIZATION_FAILED

    file.write_text(RULES)

    async def well() -> bool:
        return not (await by_calls.beat()).error_code

    await until(well)
    assert not (await by_calls.leave()).error_code
    await session.close()


async def answers_to(
    caller: Caller, requests: dict[str, incremental_pb2.ConsumerGroupHeartbeatRequest]
) -> dict[str, int]:
    """What plain calls, and frames of a stream, are answered."""
    found: dict[str, int] = {}
    session = await Session(caller.channel).hello()
    for number, (what, request) in enumerate(requests.items(), 1):
        answer = await caller.stub.ConsumerGroupHeartbeat(request, timeout=60)
        found[what] = answer.error_code
        if request.member_seq:  # without numbers nobody asks on a stream
            reply = await session.ask(consumer_group_heartbeat=request, connection=90 + number)
            found[f"{what}, on a stream"] = reply.consumer_group_heartbeat.error_code
    assert not session.said("member_news")
    await session.close()
    return found


async def test_nobody_speaks_for_a_member_whatever_it_asks_for(scene: tuple[Scene, str]) -> None:
    """INC-52: also with the weights, holds and numbers that came with incremental groups."""
    at, who = scene
    attacker = at.caller(who)
    owned, epoch, records = dict(at.member.owned), at.member.epoch, await at.records()
    for secret in (b"", b"x" * 16):
        requests = at.forged()
        if secret:
            for request in requests.values():
                request.member_secret = secret
        answers = await answers_to(attacker, requests)
        assert {what: code for what, code in answers.items() if code != UNKNOWN} == {}
        for commit in (
            at.commit(member_secret=secret),
            at.commit(member_epoch=None, generation=epoch),
            at.commit(member_id="", member_epoch=-1),
        ):
            answer = await attacker.stub.OffsetCommit(commit, timeout=60)
            assert answer.topics[0].partitions[0].error_code == UNKNOWN
        leaver = coordinator_pb2.LeaveGroupRequest.Member(member_id=at.member.member_id, member_secret=secret)
        left = await attacker.stub.LeaveGroup(
            coordinator_pb2.LeaveGroupRequest(group_id=GROUP, members=[leaver]), timeout=60
        )
        assert left.members[0].error_code == UNKNOWN
    session = await Session(attacker.channel).hello()
    attach = session_pb2.Attach(group_id=GROUP, member_id=at.member.member_id, generation=epoch)
    await session.send(session_pb2.ClientFrame(attach=attach))
    assert (await session.until(lambda: session.said("attach_result")))[0].error_code
    detach = session_pb2.Detach(group_id=GROUP, member_id=at.member.member_id)
    await session.send(session_pb2.ClientFrame(detach=detach))
    await session.beat()
    await session.close()
    assert await at.records() == records, "nothing of it is in the log"
    assert not (await at.member.beat()).error_code
    assert (at.member.owned, at.member.epoch) == (owned, epoch)
    assert await at.member.commit(1, ("t", 0)) == error_code.NONE
    assert await at.member.caller.fetch(GROUP) == [(error_code.NONE, 1)]


async def test_who_is_refused_for_a_member_is_told_of(scene: tuple[Scene, str]) -> None:
    at, who = scene
    attacker = at.caller(who)
    with capture_logs() as lines:
        await answers_to(attacker, {"a leave": at.forged()["a leave"]})
    if who:
        told = [line for line in lines if line["event"] == "audit"]
        assert [(one["action"], one["who"], one["outcome"]) for one in told] == [
            ("act", who, "refused"),
            ("act", who, "refused"),
        ]
        assert told[0]["what"] == [f"member:{GROUP}/{at.member.member_id}"]
    else:
        (line,) = [line for line in lines if line["event"] == "member_secret_wrong"]
        assert (line["group_id"], line["member_id"]) == (GROUP, at.member.member_id)
    assert SECRET.decode() not in str(lines)


@pytest.mark.parametrize("scene", ["identities"], indirect=True)
async def test_who_may_join_a_group_neither_converts_nor_alters_it(scene: tuple[Scene, str]) -> None:
    """ACC-01: what an operator does needs `admin`, of members too; each refusal is in the trail."""
    at, neighbour = scene
    records = await at.records()
    calls: list[tuple[str, Any]] = [
        ("ConvertGroup", ConvertGroupRequest(group_id=GROUP, kind=GROUP_KIND_CLASSIC)),
        ("ConvertGroup", ConvertGroupRequest(group_id=GROUP, kind=GROUP_KIND_INCREMENTAL)),
        ("AlterGroupSettings", _altered(hold=True)),
        ("AlterGroupSettings", _altered(assignment_interval_ms=600_000)),
        ("AlterGroupSettings", _altered(convert="always")),
        ("AlterGroupSettings", AlterGroupSettingsRequest(group_id=GROUP, unset=["hold"])),
        ("AlterGroupSettings", _altered("not-there", hold=True)),
    ]
    with capture_logs() as lines:
        for who in ("owner", neighbour, "stranger", ""):
            caller = at.caller(who)
            for method, request in calls:
                answer = await getattr(caller.stub, method)(request, timeout=60)
                assert answer.error_code == NO_GROUP, (who, method)
                assert not answer.ByteSize() or "GROUP" not in answer.error_message
    told = [(line["who"], line["action"], line["outcome"]) for line in lines if line["event"] == "audit"]
    assert set(told) == {(who, "admin", "refused") for who in ("owner", neighbour, "stranger", "")}
    assert await at.records() == records
    with capture_logs() as lines:
        operator = at.caller("operator")
        for method, request in calls[2:3] + calls[:1]:
            assert not (await getattr(operator.stub, method)(request, timeout=60)).error_code
    done = [(line["who"], line["action"], line["outcome"]) for line in lines if line["event"] == "audit"]
    assert done == [("operator", "AlterGroupSettings", "done"), ("operator", "ConvertGroup", "done")]
    assert (await at.member.beat()).error_code == error_code.GROUP_CLASSIC


@pytest.mark.parametrize("scene", ["identities"], indirect=True)
async def test_a_stranger_sees_and_joins_nothing_on_a_stream_either(scene: tuple[Scene, str]) -> None:
    at, _ = scene
    stranger = at.caller("stranger")
    session = await Session(stranger.channel).hello()
    joining = at.request(JOIN, member_id="of-its-own", group_instance_id="j", rollout_hold_ms=3_600_000)
    replies = [
        await session.ask(consumer_group_heartbeat=joining, connection=1),
        await session.ask(consumer_group_heartbeat=at.request(at.member.epoch), connection=2),
    ]
    assert [reply.consumer_group_heartbeat.error_code for reply in replies] == [NO_GROUP] * 2
    assert [reply.consumer_group_heartbeat.member_epoch for reply in replies] == [0, 0]
    reply = await session.ask(offset_commit=at.commit())
    assert reply.offset_commit.topics[0].partitions[0].error_code == NO_GROUP
    await session.send(call(900, consumer_group_heartbeat=joining))  # without a connection
    await session.until(lambda: [reply for reply in session.said("reply") if reply.call_id == 900])
    await session.close()
    (group,) = await described(at.caller("operator"), GROUP)
    assert [member.member_id for member in group.members] == [at.member.member_id]
    (group,) = await described(stranger, GROUP)
    assert (group.error_code, len(group.members)) == (NO_GROUP, 0)


def _altered(group_id: str = GROUP, **settings: Any) -> AlterGroupSettingsRequest:
    return AlterGroupSettingsRequest(group_id=group_id, set=GroupSettings(**settings))
