"""What the records of incremental groups do in a replay (rows PR)."""

import pytest
from conformance.acts import stable
from conformance.incremental.lab import JOIN, LEAVE, NOTHING, Lab, listed, t
from muster_core.position import Position
from muster_protos.muster.log.v1 import incremental_pb2, records_pb2

ALL = t(0, 1, 2, 3, 4, 5)


def two() -> Lab:
    """`a` has given half of what it had to `b`."""
    lab = Lab()
    lab("a", JOIN, instance="i")
    lab.shares = {"a": t(0, 1, 2), "b": t(3, 4, 5)}
    lab("b", JOIN)
    lab("a", 1)
    lab("a", 1, t(0, 1, 2))
    lab("b", 2)
    return lab


def upto(lab: Lab, kind: str, number: int = 1) -> Lab:
    """What a load makes of the log up to the so many-th record of a kind."""
    places = [place for place, (_, record) in enumerate(lab.cluster.log) if record.WhichOneof("kind") == kind]
    return Lab(None, lab.cluster.log[: places[number - 1] + 1])


@pytest.mark.row("PR-09")
def test_a_subscription_makes_group_and_member() -> None:
    loaded = upto(two(), "member_subscribed")
    assert loaded.epochs == (0, 0)
    told = loaded.member("a").told
    assert (told.group_instance_id, told.topics, told.rebalance_timeout_ms) == ("i", frozenset({"t"}), 60_000)
    assert (loaded.has("a"), loaded.group.statics) == (NOTHING, {"i": "a"})


@pytest.mark.row("PR-08")
def test_a_raised_epoch_is_the_groups_with_its_topics() -> None:
    loaded = upto(two(), "epoch_raised")
    assert loaded.epochs == (1, 0)
    assert loaded.group.topics_hash == two().group.topics_hash != b""


@pytest.mark.row("PR-10")
@pytest.mark.row("PR-11")
def test_a_target_is_that_of_its_epoch_and_of_each_member() -> None:
    loaded = upto(two(), "target_assigned", 2)
    assert loaded.epochs == (2, 2)
    assert [listed(loaded.member(who).target) for who in "ab"] == [t(0, 1, 2), t(3, 4, 5)]
    assert loaded.has("a") == ALL


@pytest.mark.row("PR-12")
def test_a_step_brings_its_member_to_where_it_was() -> None:
    lab = two()
    count = sum(record.HasField("member_stepped") for _, record in lab.cluster.log)
    states = []
    for number in range(1, count + 1):
        loaded = upto(lab, "member_stepped", number)
        a = loaded.member("a")
        states.append((a.epoch, a.previous_epoch, loaded.has("a"), loaded.owes("a")))
        held = {partition: who for who in loaded.group.members for partition in loaded.member(who).held}
        assert held == loaded.group.owners
    assert states[0] == (1, 0, ALL, NOTHING)
    assert (1, 1, t(0, 1, 2), t(3, 4, 5)) in states
    assert states[-1] == (2, 1, t(0, 1, 2), NOTHING)
    assert loaded.group.members == lab.group.members


@pytest.mark.row("PR-16")
def test_a_target_of_nothing_takes_all_that_a_member_was_to_have() -> None:
    lab = two()
    lab.shares = {"b": ALL}
    lab("b", 2, topics=["t", "u"])
    assert lab.reloaded().member("a").target == frozenset()


@pytest.mark.row("PR-17")
@pytest.mark.parametrize("kind", ["member_stepped", "member_removed", "target_assigned", "member_went_away"])
def test_a_record_of_a_member_that_is_not_there_stops_the_load(kind: str) -> None:
    lab = two()
    lab("b", LEAVE)
    record = records_pb2.Record(critical=True)
    if kind == "target_assigned":
        record.target_assigned.group_id, record.target_assigned.epoch = "g", 3
        record.target_assigned.changes.add(member_id="b")
    else:
        getattr(record, kind).group_id = "g"
        getattr(record, kind).member_id = "b"
    last = lab.cluster.log[-1][0]
    with pytest.raises(KeyError, match="b"):
        Lab(None, [*lab.cluster.log, (Position(last.epoch, last.offset + 1), record)])


@pytest.mark.row("PR-21")
def test_what_an_expression_matches_is_known_until_nobody_subscribes_to_it() -> None:
    lab = Lab({"t": 1})
    lab("a", JOIN, regex="t.*")
    assert upto(lab, "expression_resolved").group.expressions == {"t.*": {"t"}}
    lab("a", 1, regex="x")
    assert "t.*" not in lab.reloaded().group.expressions


@pytest.mark.row("PR-22")
def test_a_record_of_an_incremental_member_in_a_group_of_classic_ones_stops_the_load() -> None:
    lab = Lab(min_session_timeout_ms=1_000, initial_rebalance_delay_ms=100)
    (classic,) = stable(lab.cluster, "c")
    joined = records_pb2.Record(critical=True)
    joined.member_subscribed.CopyFrom(
        incremental_pb2.MemberSubscribed(
            group_id="g", member=incremental_pb2.IncrementalMember(member_id="a"), joined=True
        )
    )

    def load() -> Lab:
        last = lab.cluster.log[-1][0]
        return Lab(None, [*lab.cluster.log, (Position(last.epoch, last.offset + 1), joined)])

    with pytest.raises(ValueError, match="has members"):
        load()
    classic.leave()
    assert list(load().group.members) == ["a"]
