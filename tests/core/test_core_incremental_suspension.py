"""Incremental groups while the coordinator is not sure of its lease (docs/safety.md, INC-90)."""

from kit.lives.incremental_shard import LEAVE, incremental_of, incremental_shard
from kit.lives.stream_member import on_streams
from muster_core import error_code


def test_what_is_stored_without_a_lease_is_told_when_it_is_held_again() -> None:
    cluster = incremental_shard()
    first, second = on_streams(cluster, "a", "b")
    had = first.has
    cluster.auto_ack = False
    cluster.send(second.request(LEAVE), place=second.place)
    cluster.suspend()
    cluster.acknowledge()
    assert "b" not in incremental_of(cluster).members
    assert first.listen() == []
    cluster.resume()
    (news,) = first.listen()
    assert news.error_code == error_code.NONE
    assert len(had) == 2
    assert len(first.has) == 4
