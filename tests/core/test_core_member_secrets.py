"""A member that joined with a secret is spoken for by nobody else (docs/safety.md, "Secrets of members")."""

from collections.abc import Callable

import pytest
from kit.lives.virtual_shard import VirtualMember, VirtualShard, fetched, settled
from kit.logs.core_audit import broken_promises
from muster_core import error_code
from muster_core.config import GroupConfig
from muster_core.error_code import ErrorCode
from muster_core.events import Attach, FeaturesEnabled, Request
from muster_core.features import ALL_FEATURES, Feature
from muster_core.log.snapshot import nothing_of, parts
from muster_core.protocol.room import Room
from muster_core.state.members.member_secret import HASH_BYTES, OPEN, Lock, hash_of
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import coordinator_pb2, session_pb2

SECRET = bytes(range(16))
OTHER = bytes(range(1, 17))
WITHOUT = ALL_FEATURES - {Feature.MEMBER_SECRETS}

UNKNOWN, FENCED = error_code.UNKNOWN_MEMBER_ID, error_code.FENCED_INSTANCE_ID


def member_with(
    cluster: VirtualShard, secret: bytes = SECRET, instance: str = "", name: str = "a"
) -> VirtualMember:
    """The only member of a Stable group."""
    member = VirtualMember(cluster, name, instance=instance)
    member.secret = secret
    member.join(disconnect_grace_ms=3_000)
    cluster.advance(10_000)
    assert member.joined().error_code == 0
    member.sync({member.member_id: b"all"})
    assert member.synced().error_code == 0
    return member


def stranger_to(member: VirtualMember, secret: bytes = OTHER) -> VirtualMember:
    """Somebody who read all that the group shows of a member."""
    described = member.cluster.describe()
    found = next(one for one in described.members if one.member_id == member.member_id)
    stranger = VirtualMember(member.cluster, "stranger", instance=found.group_instance_id)
    stranger.member_id, stranger.generation, stranger.secret = found.member_id, described.generation, secret
    stranger.protocols = member.protocols
    return stranger


def attach(member: VirtualMember, stream_id: int = 1) -> ErrorCode:
    member.cluster.pushes.clear()
    request = session_pb2.Attach(
        group_id=member.group,
        member_id=member.member_id,
        group_instance_id=member.instance,
        generation=member.generation,
        member_secret=member.secret,
    )
    member.cluster.feed(Attach(stream_id, request))
    (push,) = member.cluster.pushes  # nobody else hears of it
    assert isinstance(push.message, session_pb2.AttachResult)
    return push.message.error_code


def join(member: VirtualMember) -> ErrorCode:
    response = member.cluster.ask(member.join_request())
    assert isinstance(response, coordinator_pb2.JoinGroupResponse)
    return response.error_code


def sync(member: VirtualMember) -> ErrorCode:
    return member.sync({member.member_id: b"mine"}).synced().error_code


CALLS: dict[str, Callable[[VirtualMember], int]] = {
    "JoinGroup": join,
    "SyncGroup": sync,
    "Heartbeat": VirtualMember.heartbeat,
    "OffsetCommit": lambda member: member.commit(1),
    "LeaveGroup": VirtualMember.leave,
    "Attach": attach,
}


@pytest.mark.parametrize(
    "secret", [OTHER, b"", SECRET[:-1], SECRET + b"\0"], ids=["wrong", "none", "cut", "long"]
)
@pytest.mark.parametrize("instance", ["", "i-1"], ids=["dynamic", "static"])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_without_the_secret_is_answered_as_if_nobody_had_the_id(
    call: str, instance: str, secret: bytes
) -> None:
    cluster = VirtualShard()
    member = member_with(cluster, instance=instance)
    cluster.advance(4_000)
    before = cluster.describe()
    records = len(cluster.log)
    answered = CALLS[call](stranger_to(member, secret))

    nobody = stranger_to(member, secret)
    nobody.member_id = "nobody"
    assert answered == CALLS[call](nobody) == (FENCED if instance else UNKNOWN)
    assert cluster.describe() == before, "not even its session was prolonged"
    assert len(cluster.log) == records
    assert fetched(cluster) == -1
    assert [CALLS[name](member) for name in ("Heartbeat", "SyncGroup", "OffsetCommit", "Attach")] == [0] * 4


@pytest.mark.parametrize("secret", [OTHER, b""], ids=["wrong", "none"])
def test_a_stranger_takes_no_member_off_its_stream(secret: bytes) -> None:
    cluster = VirtualShard()
    member = member_with(cluster)
    assert attach(member, stream_id=1) == 0
    assert attach(stranger_to(member, secret), stream_id=2) == UNKNOWN
    assert cluster.shard.groups["g"].members[member.member_id].stream_id == 1


def test_a_join_without_the_secret_puts_nobody_out_of_a_full_group() -> None:
    """A member that joins again after the limit was reached is removed (conformance MX-07)."""
    cluster = VirtualShard(GroupConfig(max_size=2))
    member = member_with(cluster)
    newcomers = [VirtualMember(cluster, name).join() for name in ("b", "c")]
    assert all(newcomer.is_parked for newcomer in newcomers)
    assert join(stranger_to(member)) == error_code.GROUP_MAX_SIZE_REACHED
    assert member.member_id in cluster.shard.groups["g"].members
    assert join(member) == error_code.GROUP_MAX_SIZE_REACHED
    assert member.member_id not in cluster.shard.groups["g"].members


def test_the_log_keeps_a_hash_and_a_load_asks_for_the_secret() -> None:
    cluster = VirtualShard()
    member = member_with(cluster)
    started = [r.generation_started for _, r in cluster.log if r.HasField("generation_started")]
    assert [one.secret_hash for one in started[-1].members] == [hash_of(SECRET)]
    assert SECRET not in b"".join(record.SerializeToString() for _, record in cluster.log)

    member.cluster = after = cluster.reloaded()
    for call in ("Heartbeat", "Attach", "SyncGroup", "LeaveGroup", "OffsetCommit", "JoinGroup"):
        assert CALLS[call](stranger_to(member)) == UNKNOWN
    assert (member.heartbeat(), attach(member), member.commit(7)) == (0, 0, 0)
    assert fetched(after) == 7
    assert not broken_promises(after)


def test_a_snapshot_keeps_the_hash() -> None:
    cluster = VirtualShard()
    member = member_with(cluster)
    stored = list(parts(cluster.shard.groups.values(), nothing_of(0)))
    fresh = VirtualShard().shard
    reader = fresh.restore()
    for part in stored:
        reader.take(part)
    assert fresh.groups["g"].members[member.member_id].lock.secret_hash == hash_of(SECRET)


def test_who_joined_without_a_secret_is_asked_for_none() -> None:
    cluster = VirtualShard()
    member = member_with(cluster, secret=b"")
    assert cluster.shard.groups["g"].members[member.member_id].lock is OPEN
    assert [CALLS[name](member) for name in ("Heartbeat", "SyncGroup", "OffsetCommit", "Attach")] == [0] * 4
    assert member.leave() == 0


@pytest.mark.parametrize("features", [ALL_FEATURES, WITHOUT], ids=["enabled", "not enabled"])
def test_who_brings_no_secret_may_be_refused(features: frozenset[Feature]) -> None:
    """Counts once the feature is enabled; who was there before stays until it joins again."""
    before = member_with(VirtualShard(features=features), secret=b"")
    cluster = before.cluster = VirtualShard(
        GroupConfig(require_member_secrets=True), before.cluster.log, features=features
    )
    assert before.heartbeat() == error_code.NONE
    counts = Feature.MEMBER_SECRETS in features
    answer = cluster.ask(before.join_request())
    assert isinstance(answer, coordinator_pb2.JoinGroupResponse)
    assert answer.error_code == (error_code.INVALID_REQUEST if counts else error_code.NONE)
    if counts:
        assert "MUSTER_GROUP_REQUIRE_MEMBER_SECRETS" in answer.error_message
        assert before.heartbeat() == error_code.NONE, "it is a member still"
    new = VirtualMember(cluster, "new")
    new.secret = SECRET
    new.join()
    assert new.is_parked


def test_before_the_feature_a_secret_is_not_kept_and_not_asked_for() -> None:
    cluster = VirtualShard(features=WITHOUT)
    member = member_with(cluster)
    started = [r.generation_started for _, r in cluster.log if r.HasField("generation_started")]
    assert not any(one.secret_hash for record in started for one in record.members)
    assert stranger_to(member).heartbeat() == 0


def test_a_member_brings_its_secret_with_the_next_rebalance_after_the_feature_is_enabled() -> None:
    cluster = VirtualShard(features=WITHOUT)
    member = member_with(cluster)
    cluster.feed(FeaturesEnabled(ALL_FEATURES))
    assert stranger_to(member).heartbeat() == 0
    member.protocols = [("range", b"changed")]
    member.join()
    assert member.joined().error_code == 0
    member.sync({member.member_id: b"all"})
    assert stranger_to(member).heartbeat() == UNKNOWN
    assert member.heartbeat() == 0


def test_a_hash_in_the_log_counts_where_the_feature_is_not_known_to_be_enabled() -> None:
    """An owner may hear that it is later than the owner before."""
    cluster = VirtualShard()
    member = member_with(cluster)
    cluster.features = WITHOUT
    member.cluster = cluster.reloaded()
    assert stranger_to(member).heartbeat() == UNKNOWN
    member.protocols = [("range", b"changed")]
    member.join()
    assert member.joined().error_code == 0
    assert stranger_to(member).heartbeat() == UNKNOWN
    assert member.heartbeat() == 0


def test_an_id_that_was_given_out_is_for_who_asked_for_it() -> None:
    cluster = VirtualShard()
    member_with(cluster)
    new = VirtualMember(cluster, "new")
    new.secret = SECRET
    first = cluster.ask(new.join_request())
    assert isinstance(first, coordinator_pb2.JoinGroupResponse)
    new.member_id = first.member_id
    thief = VirtualMember(cluster, "thief")
    thief.member_id, thief.secret = new.member_id, OTHER
    assert (join(thief), thief.leave()) == (UNKNOWN, UNKNOWN)
    new.join()
    assert new.is_parked


def test_a_retry_meets_its_own_id_and_who_knows_only_its_request_id_does_not() -> None:
    cluster = VirtualShard()
    member_with(cluster)
    new = VirtualMember(cluster, "new")
    new.secret = SECRET

    def first_join() -> str:
        response = cluster.ask(new.join_request(request_id="r"))
        assert isinstance(response, coordinator_pb2.JoinGroupResponse)
        return response.member_id

    own = first_join()
    assert first_join() == own
    new.secret = OTHER
    assert first_join() != own


def test_another_process_of_a_static_member_brings_a_secret_of_its_own() -> None:
    cluster = VirtualShard()
    before = member_with(cluster, instance="i-1")
    after = VirtualMember(cluster, "a", instance="i-1")
    after.secret = OTHER
    after.join()
    assert after.joined().error_code == 0
    replaced = [record.member_replaced for _, record in cluster.log if record.HasField("member_replaced")]
    assert [one.member.secret_hash for one in replaced] == [hash_of(OTHER)]
    assert before.heartbeat() == FENCED
    before.member_id = after.member_id
    assert before.heartbeat() == FENCED, "the secret of the process before is no secret of this one"
    assert after.heartbeat() == 0
    assert not broken_promises(cluster)


def test_another_process_in_the_first_join_phase_brings_a_secret_of_its_own() -> None:
    cluster = VirtualShard()
    before = VirtualMember(cluster, "a", instance="i-1")
    before.secret = SECRET
    before.join()
    after = VirtualMember(cluster, "a", instance="i-1")
    after.secret = OTHER
    after.join()
    assert before.joined().error_code == FENCED
    cluster.advance(10_000)
    assert after.joined().error_code == 0
    (lock,) = [member.lock for member in cluster.shard.groups["g"].members.values()]
    assert lock.secret_hash == hash_of(OTHER)


def test_a_static_member_is_put_out_by_its_instance_id() -> None:
    """As Kafka's operators do; whoever may join may take its place anyway."""
    cluster = VirtualShard()
    member_with(cluster, instance="i-1")
    operator = VirtualMember(cluster, "operator", instance="i-1")
    assert operator.leave("by an operator") == 0
    assert not cluster.describe().members


@pytest.mark.parametrize("instance", ["", "i-1"], ids=["dynamic", "static"])
@pytest.mark.parametrize(("is_operator", "code"), [(True, 0), (False, None), (None, None)])
def test_who_administers_the_group_puts_members_out_without_their_secrets(
    is_operator: bool | None, code: int | None, instance: str
) -> None:
    cluster = VirtualShard()
    member = member_with(cluster, instance=instance)
    leaver = coordinator_pb2.LeaveGroupRequest.Member(member_id=member.member_id, group_instance_id=instance)
    request = coordinator_pb2.LeaveGroupRequest(group_id="g", members=[leaver])
    cluster.feed(Request(999, request, is_operator=is_operator))
    answer = cluster.answer(999)
    assert isinstance(answer, coordinator_pb2.LeaveGroupResponse)
    assert answer.members[0].error_code == ((FENCED if instance else UNKNOWN) if code is None else code)
    assert bool(cluster.describe().members) == (code is None)


def test_commits_from_outside_need_no_secret() -> None:
    cluster = VirtualShard()
    outside = VirtualMember(cluster, "simple")
    assert outside.commit(3) == 0
    assert fetched(cluster) == 3


def test_nothing_that_is_shown_of_a_group_has_the_secret_or_its_hash() -> None:
    cluster = VirtualShard()
    member = member_with(cluster)
    history = cluster.ask(coordinator_pb2.GroupHistoryRequest(group_id="g"))
    for shown in (cluster.describe(), history):
        data = shown.SerializeToString()
        assert member.member_id.encode() in data
        assert SECRET not in data
        assert hash_of(SECRET) not in data


def test_calls_without_the_secret_are_counted_with_where_they_came_from() -> None:
    cluster = VirtualShard()
    member = member_with(cluster)
    heard: list[tuple[str, str, str, str]] = []
    cluster.shard.live_in(Room(unproven=lambda *who: heard.append(who)))
    stranger = stranger_to(member)
    stranger.heartbeat()
    attach(stranger)
    stranger.member_id = "nobody"
    stranger.heartbeat()
    member.heartbeat()
    assert heard == [("g", member.member_id, "", "10.0.0.1"), ("g", member.member_id, "", "")]


def test_a_call_without_the_secret_is_told_with_who_made_it() -> None:
    cluster = VirtualShard()
    cluster.identity = "ann"
    member = member_with(cluster)
    heard: list[tuple[str, str, str, str]] = []
    cluster.shard.live_in(Room(unproven=lambda *who: heard.append(who)))
    stranger_to(member).heartbeat()
    assert heard == [("g", member.member_id, "ann", "10.0.0.1")]


def test_members_of_one_group_have_secrets_of_their_own() -> None:
    cluster = VirtualShard()
    plain, other = settled(cluster, "a", "b")
    assert plain.heartbeat() == other.heartbeat() == 0
    locked = VirtualMember(cluster, "c")
    locked.secret = SECRET
    locked.join()
    for member in (plain, other):
        member.join()
    for member in (plain, other, locked):
        assert member.joined().error_code == 0
    assert stranger_to(locked, b"").heartbeat() == UNKNOWN
    assert stranger_to(plain).heartbeat() == 0


def test_a_lock_takes_its_secret_alone_however_often_it_was_opened() -> None:
    lock = Lock(hash_of(SECRET))
    for _ in range(3):
        assert lock.is_opened_by(SECRET)
        for wrong in (OTHER, b"", SECRET[:-1], SECRET + b"\0", hash_of(SECRET)):
            assert not lock.is_opened_by(wrong)
    assert len(hash_of(SECRET)) == HASH_BYTES == 16


def test_a_member_weighs_what_its_hash_takes_in_a_record() -> None:
    cluster = VirtualShard()
    member = cluster.shard.groups
    plain, locked = VirtualMember(cluster, "a", group="p"), VirtualMember(cluster, "a", group="q")
    locked.secret = SECRET
    for one in (plain, locked):
        one.join()
    assert member["q"].size_bytes - member["p"].size_bytes == HASH_BYTES
    record = records_pb2.Member(secret_hash=hash_of(SECRET))
    assert record.ByteSize() == HASH_BYTES + 2
