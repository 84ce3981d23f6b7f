"""Lists of groups: in order and in steps, however many groups a shard has (docs/safety.md, LIM-31)."""

import random
from collections.abc import Iterator

import pytest
from conformance import acts
from kit.lives.virtual_shard import VirtualShard
from muster_core.config import GroupConfig
from muster_core.protocol import queries
from muster_core.protocol.queries import LOOKED_AT_MAX, Queries
from muster_core.state.group import Group
from muster_core.state.group_table import GroupTable
from muster_core.state.offsets.runs import RUN
from muster_protos.muster.v1 import coordinator_pb2


def pages(cluster: VirtualShard, limit: int, states: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """The ids of each page of a list."""
    request = coordinator_pb2.ListGroupsRequest(limit=limit, states=states)
    while True:
        answer = cluster.ask(request)
        assert isinstance(answer, coordinator_pb2.ListGroupsResponse)
        yield [group.group_id for group in answer.groups]
        if not answer.next_page_token:
            return
        assert answer.next_page_token > request.page_token
        request.page_token = answer.next_page_token


def test_a_page_looks_at_some_groups_however_few_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of groups in a state that none has looked at fifty thousand for each page, which took 0.1 s."""
    monkeypatch.setattr(queries, "LOOKED_AT_MAX", 10)
    looked_at: list[str] = []
    state_of = Queries._state_of

    def counted(self: Queries, group_id: str) -> str:
        looked_at.append(group_id)
        return state_of(self, group_id)

    monkeypatch.setattr(Queries, "_state_of", counted)
    cluster = VirtualShard(GroupConfig())
    ids = [f"g{number:02}" for number in range(35)]
    for group_id in random.Random(1).sample(ids, len(ids)):
        acts.commit(cluster, group_id=group_id)
    assert list(pages(cluster, 1, states=("stable",))) == [[]] * 4
    assert looked_at == ids
    assert [one for page in pages(cluster, 7, states=("empty",)) for one in page] == ids
    assert [len(page) for page in pages(cluster, 100)] == [10, 10, 10, 5]
    assert LOOKED_AT_MAX == 1_000


def test_ids_stay_in_order_while_groups_come_and_go() -> None:
    dice, table, known = random.Random(2), GroupTable(), set[str]()
    for turn in range(3):
        for number in dice.sample(range(3 * RUN), 2 * RUN):
            table[f"{number}"] = Group(f"{number}", 0, 0)
            known.add(f"{number}")
        for group_id in dice.sample(sorted(known), RUN // 2):
            if dice.random() < 0.5:
                del table[group_id]
            else:
                assert table.pop(group_id).group_id == group_id
            known.remove(group_id)
        assert table.pop("-", None) is None
        assert turn or not table.put_in_order(), "so many at a time"
        in_order = sorted(known)
        assert list(table.after("")) == in_order
        assert list(table.after(in_order[RUN])) == in_order[RUN + 1 :]
    table.clear()
    assert list(table.after("")) == []
