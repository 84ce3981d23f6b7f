"""A new link goes where a call for its group was answered lately, without a lookup."""

import asyncio
from typing import Any, cast

import pytest
from muster._cluster import lately
from muster._cluster.discovery import OLD_VIEW_MS, FoundCoordinator
from muster._cluster.lately import MOST_GROUPS, AnsweredLately
from muster._cluster.link import GroupLink
from muster._session.transport import ConnectionLost
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, discovery_pb2

Response = coordinator_pb2.DescribeGroupsResponse
TIMEOUT_MS = 1_000


class Coordinators:
    """Discovery, and what answers at each address: an error code, or None where nothing listens."""

    def __init__(self, **answers: int | None) -> None:
        self.answers = answers
        self.owner = "a"
        self.epoch = 7
        self.lookups = 0
        self.calls: list[str] = []
        self.silent: set[str] = set()
        self.hang = asyncio.Event()

    async def find(self, group_id: str, seen_epoch: int) -> FoundCoordinator:
        self.lookups += 1
        coordinator = common_pb2.Coordinator(
            node_id=self.owner, host=self.owner, port=1, shard_epoch=self.epoch
        )
        result = discovery_pb2.FindCoordinatorResponse.Result(group_id=group_id, coordinator=coordinator)
        return FoundCoordinator(result, "discovery:1")

    def doubt(self, server: str) -> None:
        assert server == "discovery:1"

    def shuns(self, address: str) -> bool:
        return address.partition(":")[0] in self.silent

    async def call(
        self, address: str, request: object, response_type: object, *, timeout_ms: int
    ) -> Response:
        name = address.partition(":")[0]
        self.calls.append(name)
        code = self.answers[name]
        if code is None:
            raise ConnectionLost("nothing listens")
        if code == common_pb2.ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS:
            await self.hang.wait()
        group = Response.Group(error_code=cast(Any, code), shard_epoch=self.epoch)
        return Response(groups=[group])


def new_link(coordinators: Coordinators, memory: AnsweredLately, group_id: str = "g") -> GroupLink:
    return GroupLink(group_id, cast(Any, coordinators), cast(Any, coordinators), memory)


async def ask(link: GroupLink, *, follow_moves: bool = False) -> int:
    outcome = await link.call(
        coordinator_pb2.DescribeGroupsRequest(), Response, timeout_ms=TIMEOUT_MS, follow_moves=follow_moves
    )
    return outcome.code


async def test_the_second_link_of_a_group_needs_no_lookup() -> None:
    coordinators, memory = Coordinators(a=0), AnsweredLately()
    first, second, other = (new_link(coordinators, memory, name) for name in ("g", "g", "h"))
    assert await ask(first) == 0
    assert await ask(second) == 0
    assert (coordinators.lookups, coordinators.calls) == (1, ["a", "a"])
    assert second.shard_epoch == coordinators.epoch, "an earlier owner is not heard"
    await ask(other)
    assert coordinators.lookups == 2, "another group may have another coordinator"


async def test_an_answer_that_is_as_old_as_a_view_may_be_counts_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ms = 1_000
    monkeypatch.setattr(lately, "boot_ms", lambda: now_ms)
    coordinators, memory = Coordinators(a=0), AnsweredLately()
    await ask(new_link(coordinators, memory))
    now_ms += OLD_VIEW_MS
    assert memory.of("g") is not None
    now_ms += 1
    assert memory.of("g") is None
    await ask(new_link(coordinators, memory))
    assert coordinators.lookups == 2


@pytest.mark.parametrize("code", [None, common_pb2.ERROR_CODE_NOT_COORDINATOR])
async def test_one_that_does_not_serve_the_group_any_more_is_asked_once(code: int | None) -> None:
    coordinators, memory = Coordinators(a=0, b=0), AnsweredLately()
    await ask(new_link(coordinators, memory))
    coordinators.answers["a"], coordinators.owner, coordinators.epoch = code, "b", 8
    second = new_link(coordinators, memory)
    assert await ask(second) != 0
    assert await ask(second) == 0
    assert await ask(new_link(coordinators, memory)) == 0
    assert (coordinators.lookups, coordinators.calls) == (2, ["a", "a", "b", "b"])


async def test_only_an_answer_without_an_error_counts() -> None:
    coordinators, memory = Coordinators(a=common_pb2.ERROR_CODE_COORDINATOR_NOT_AVAILABLE), AnsweredLately()
    await ask(new_link(coordinators, memory))
    assert memory.of("g") is None


async def test_one_that_was_silent_a_moment_ago_is_looked_up() -> None:
    coordinators, memory = Coordinators(a=0, b=0), AnsweredLately()
    await ask(new_link(coordinators, memory))
    coordinators.silent.add("a")
    coordinators.owner = "b"
    assert await ask(new_link(coordinators, memory)) == 0
    assert coordinators.calls == ["a", "b"]


async def test_a_call_is_given_up_when_its_coordinator_moves() -> None:
    coordinators = Coordinators(a=common_pb2.ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS, b=0)
    link = new_link(coordinators, AnsweredLately())
    waits = asyncio.create_task(ask(link, follow_moves=True))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waits.done()
    link.follow(common_pb2.Coordinator(node_id="b", host="b", port=1, shard_epoch=9))
    coordinators.epoch = 9
    assert await waits != 0
    assert link.address == "b:1"
    assert await ask(link, follow_moves=True) == 0


def test_what_is_remembered_has_a_bound() -> None:
    memory = AnsweredLately()
    for number in range(MOST_GROUPS + 1):
        memory.note(f"g{number}", "a:1", 1)
    assert memory.of("g0") is None
    assert memory.of("g1") is not None
    memory.note("g1", "b:1", 2)
    memory.forget("g1", "a:1")
    assert memory.of("g1") is not None, "somebody else has answered since"
    memory.forget("g1", "b:1")
    assert memory.of("g1") is None
