"""Subscriptions by expressions (docs/safety.md, INC-36; conformance RX-01 to RX-09)."""

import pytest
from kit.lives.incremental_shard import FEATURES, NumberedMember, incremental_of
from kit.lives.server_assignors import SERVER_ASSIGNORS, Re2Expressions, answer_to
from kit.lives.virtual_shard import VirtualShard
from kit.logs.snapshots import check_every_cut
from muster_core import error_code
from muster_core.catalog import Catalog
from muster_core.config import GroupConfig
from muster_core.events import Resolve, Resolved, TopicsChanged
from muster_core.incremental.decisions.heartbeat import EXPRESSIONS_MAX
from muster_core.protocol.room import Room
from muster_protos.muster.v1 import coordinator_pb2
from muster_protos.muster.v1.incremental_pb2 import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

NAMES = ["orders", "orders_eu", "bills", "orders_us"]


def tell(cluster: VirtualShard, changed: set[str], **partitions: int) -> None:
    place = cluster.now_ms + len(partitions)
    incarnations = {name: 1 + NAMES.index(name) for name in partitions}
    cluster.feed(TopicsChanged(frozenset(changed), catalog=Catalog(place, partitions, {}, incarnations)))


def shard(records: VirtualShard | None = None, config: GroupConfig | None = None) -> VirtualShard:
    cluster = VirtualShard(config, None if records is None else records.log, features=FEATURES)
    cluster.shard.live_in(Room(assignors=SERVER_ASSIGNORS, expressions=Re2Expressions()))
    cluster.works = answer_to
    tell(cluster, set(), orders=2, orders_eu=1, bills=1)
    return cluster


def ask(
    cluster: VirtualShard, member_id: str, epoch: int, expression: str | None = None
) -> ConsumerGroupHeartbeatResponse:
    request = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id=member_id, member_epoch=epoch, topic_regex=expression
    )
    if epoch == 0:
        request.rebalance_timeout_ms = 30_000
        request.owned.SetInParent()
    answer = cluster.ask(request)
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    return answer


def topics(cluster: VirtualShard, member_id: str) -> set[str]:
    return {topic for topic, _ in incremental_of(cluster).members[member_id].target}


def test_a_name_has_to_match_as_a_whole() -> None:
    cluster = shard()
    assert not ask(cluster, "a", 0, "orders").error_code
    ask(cluster, "a", 1)
    assert topics(cluster, "a") == {"orders"}
    other = shard()
    ask(other, "a", 0, "orders.*")
    ask(other, "a", 1)
    assert topics(other, "a") == {"orders", "orders_eu"}


def test_what_is_no_expression_or_takes_too_long_is_refused() -> None:
    cluster = shard()
    refused = error_code.INVALID_REGULAR_EXPRESSION
    for expression in ("(", "[a-", r"\pL*", "é", "x" * 256, r"(a)\1", "(?=a)b", "(a{1000}){1000}"):
        assert ask(cluster, "a", 0, expression).error_code == refused, expression
    assert "g" not in cluster.shard.groups
    for number in range(EXPRESSIONS_MAX):
        assert not ask(cluster, f"m{number}", 0, f"t{number}").error_code
    assert ask(cluster, "more", 0, "other").error_code == refused
    assert not ask(cluster, "more", 0, "t0").error_code


def test_without_a_judge_expressions_are_refused() -> None:
    cluster = shard()
    cluster.shard.live_in(Room(assignors=SERVER_ASSIGNORS))
    assert ask(cluster, "a", 0, "orders").error_code == error_code.INVALID_REGULAR_EXPRESSION


def test_topics_that_are_created_are_found_after_a_while() -> None:
    cluster = shard()
    ask(cluster, "a", 0, "orders.*")
    ask(cluster, "a", 1)
    tell(cluster, {"orders_us"}, orders=2, orders_eu=1, bills=1, orders_us=1)
    ask(cluster, "a", 2)
    assert "orders_us" not in topics(cluster, "a")
    cluster.advance(10_001)
    ask(cluster, "a", 2)
    ask(cluster, "a", 2)
    assert topics(cluster, "a") == {"orders", "orders_eu", "orders_us"}
    count = len(cluster.log)
    tell(cluster, {"bills"}, orders=2, orders_eu=1, bills=1, orders_us=1)
    cluster.advance(10_001)
    ask(cluster, "a", incremental_of(cluster).members["a"].epoch)
    assert len(cluster.log) == count


def test_a_result_for_an_expression_that_nobody_has_is_dropped() -> None:
    cluster = shard()
    cluster.works = None
    ask(cluster, "a", 0, "orders")
    (work,) = cluster.work
    cluster.work.clear()
    assert isinstance(work, Resolve)
    ask(cluster, "a", 1, "bills")
    cluster.feed(answer_to(work))
    assert incremental_of(cluster).expressions == {}
    cluster.works = answer_to
    ask(cluster, "a", 1)
    ask(cluster, "a", 1)
    assert topics(cluster, "a") == {"bills"}


@pytest.mark.row("RX-09")
def test_a_result_that_could_not_be_had_is_asked_for_again() -> None:
    cluster = shard()
    cluster.works = None
    ask(cluster, "a", 0, "orders")
    (work,) = cluster.work
    cluster.work.clear()
    cluster.feed(Resolved(work.group_id, work.number, None))
    cluster.works = answer_to
    ask(cluster, "a", 1)
    ask(cluster, "a", 1)
    assert topics(cluster, "a") == {"orders"}


def test_what_nobody_subscribes_to_is_forgotten_and_a_load_knows_the_rest() -> None:
    cluster = shard()
    ask(cluster, "a", 0, "orders.*")
    cluster.advance(10_001)
    ask(cluster, "b", 0, "bills")
    assert set(incremental_of(cluster).expressions) == {"orders.*", "bills"}
    loaded = shard(cluster)
    assert incremental_of(loaded).expressions == incremental_of(cluster).expressions
    assert not ask(loaded, "b", incremental_of(loaded).members["b"].epoch).error_code
    check_every_cut(cluster.log, cluster.config)
    ask(cluster, "a", -1)
    assert set(incremental_of(cluster).expressions) == {"bills"}
    check_every_cut(cluster.log, cluster.config)


def test_names_and_an_expression_go_together() -> None:
    cluster = shard()
    request = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="a", member_epoch=0, topic_regex="bills", rebalance_timeout_ms=30_000
    )
    request.topics.names.append("orders")
    request.owned.SetInParent()
    cluster.ask(request)
    ask(cluster, "a", 1)
    assert topics(cluster, "a") == {"orders", "bills"}


@pytest.mark.row("GE-08")
@pytest.mark.parametrize("later", ["", "nothing.*", "bills"])
def test_who_drops_its_expression_gives_back_what_that_matched(later: str) -> None:
    cluster = shard()
    member = NumberedMember(cluster, "a")
    member.seq = 1
    request = member.request(0)
    request.topic_regex, request.rebalance_timeout_ms = "orders.*", 30_000
    request.topics.names.append("bills")
    request.owned.SetInParent()
    member.hear(member.ask(request))
    member.beat(member.owned)
    assert {topic for topic, _ in member.owned} == {"orders", "orders_eu", "bills"}
    ask(cluster, "b", 0, "orders.*")  # so that the group's topics stay
    member.beat(member.owned)
    cluster.advance(10_001)  # until expressions are looked up again
    request = member.request(member.epoch)
    request.topic_regex = later
    member.hear(member.ask(request))
    for _ in range(3):
        member.beat(member.owned)
    assert topics(cluster, "a") == {topic for topic, _ in member.owned} == {"bills"}


def test_offsets_do_not_expire_before_it_is_known_what_an_expression_matches() -> None:
    config = GroupConfig(offsets_retention_ms=3_000, retention_check_interval_ms=500)
    cluster = shard(config=config)
    commit = coordinator_pb2.OffsetCommitRequest(group_id="g", generation=-1)
    for topic in ("orders", "bills"):
        commit.topics.add(name=topic).partitions.add(partition=0, offset=7)
    cluster.ask(commit)
    ask(cluster, "a", 0, "nothing.*")
    ask(cluster, "b", 0, "orders")
    cluster.advance(2 * config.offsets_retention_ms)
    group = cluster.shard.groups["g"]
    assert set(incremental_of(cluster).expressions) == {"nothing.*"}, (
        "the pause between two looks is not over"
    )
    assert set(group.offsets.table) == {("orders", 0), ("bills", 0)}
    cluster.advance(10_000)
    ask(cluster, "b", 1)
    assert incremental_of(cluster).expressions["orders"] == {"orders"}
    cluster.advance(config.retention_check_interval_ms)
    assert set(group.offsets.table) == {("orders", 0)}
