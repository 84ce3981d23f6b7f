"""The fence of an HTTP service, on a real server: a zombie is answered 412, and nobody is overtaken."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kit.waiting import until
from muster.sinks import FencingMiddleware, MemoryTokens, fence_headers
from sinks.sinks_owners import HEIR, ZOMBIE, Owner, owner

WHY = "is missing: `./x test tests/sinks` brings it"
httpx: Any = pytest.importorskip("httpx", reason=f"httpx {WHY}")
uvicorn: Any = pytest.importorskip("uvicorn", reason=f"uvicorn {WHY}")
pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


class Service:
    """A service that notes which tokens wrote, when it is allowed to."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.fails = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        token = dict(scope["headers"]).get(b"muster-token", b"").decode()
        self.begun.append(token)
        await self.go_on.wait()
        if self.fails:
            raise RuntimeError("the service fails")
        self.ended.append(token)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class Served:
    """A service behind the middleware on a real socket, and a client."""

    def __init__(self, **settings: Any) -> None:
        self.service = Service()
        self.middleware = FencingMiddleware(self.service, **settings)
        config = uvicorn.Config(self.middleware, lifespan="off", log_level="critical")
        self.server = uvicorn.Server(config)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.socket.getsockname()[1]}")

    async def __aenter__(self) -> "Served":
        self.serving = asyncio.create_task(self.server.serve([self.socket]))
        await until(lambda: self.server.started, "the server is there")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.service.go_on.set()
        await self.client.aclose()
        self.server.should_exit = True
        await self.serving

    async def put(self, one: Owner) -> int:
        answer = await self.client.put("/x", headers=fence_headers(one), timeout=60)
        return int(answer.status_code)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with Served() as served:
        yield served


async def test_a_zombie_is_refused_after_its_successor_wrote(served: Served) -> None:
    answers = [await served.put(one) for one in (ZOMBIE, ZOMBIE, HEIR, ZOMBIE, HEIR)]
    assert answers == [204, 204, 204, 412, 204]
    assert served.service.ended == [ZOMBIE.token] * 2 + [HEIR.token] * 2
    refused = await served.client.put("/x", headers=fence_headers(ZOMBIE))
    text = f"crawlers/sites/3: token {ZOMBIE.token} is not the owner's any more; {HEIR.token} was seen"
    assert refused.json() == {"error": "stale_token", "message": text}
    assert await served.put(owner(1, 1, number=4)) == 204


async def test_a_successor_waits_for_what_the_owner_before_asked_and_other_partitions_do_not(
    served: Served,
) -> None:
    service = served.service
    service.go_on.clear()
    early = [asyncio.create_task(served.put(ZOMBIE)) for _ in range(2)]
    await until(lambda: len(service.begun) == 2, "two requests of one owner run at once")
    late = asyncio.create_task(served.put(HEIR))
    other = asyncio.create_task(served.put(owner(1, 1, number=4)))
    await until(lambda: len(service.begun) == 3, "the other partition's runs beside them")
    assert await served.put(ZOMBIE) == 412  # the successor was heard of, though it waits
    assert HEIR.token not in service.begun
    service.go_on.set()
    assert [await task for task in (*early, late, other)] == [204] * 4
    assert service.ended.index(HEIR.token) > max(n for n, t in enumerate(service.ended) if t == ZOMBIE.token)
    assert served.middleware._running == {}


async def test_a_request_that_fails_holds_nobody_up(served: Served) -> None:
    served.service.fails = True
    assert await served.put(ZOMBIE) == 500
    served.service.fails = False
    assert await served.put(HEIR) == 204
    assert served.middleware._running == {}


@pytest.mark.parametrize(
    ("headers", "status", "error"),
    [
        ({}, 428, "token_required"),
        ({"Muster-Resource": "g/t/0"}, 400, "bad_token"),
        ({"Muster-Resource": "g/t/0", "Muster-Token": "9"}, 400, "bad_token"),
        ({"Muster-Token": HEIR.token}, 400, "bad_resource"),
        ({"Muster-Resource": "g" * 1_025, "Muster-Token": HEIR.token}, 400, "bad_resource"),
    ],
)
async def test_headers_that_cannot_be_are_named(
    served: Served, headers: dict[str, str], status: int, error: str
) -> None:
    answer = await served.client.post("/x", headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (status, error)
    assert served.service.begun == []


async def test_reads_pass_and_writes_without_a_token_where_none_is_required(served: Served) -> None:
    assert (await served.client.get("/x")).status_code == 204
    async with Served(required=False) as open_to_all:
        assert (await open_to_all.client.post("/x")).status_code == 204


async def test_the_tokens_that_are_kept_have_a_limit() -> None:
    async with Served(tokens=MemoryTokens(limit=1)) as served:
        assert await served.put(HEIR) == 204
        answer = await served.client.put("/x", headers=fence_headers(owner(1, 1, number=4)))
        assert (answer.status_code, answer.json()["error"]) == (503, "too_many_resources")
        assert await served.put(HEIR) == 204


async def test_a_group_of_any_name_can_be_a_resource() -> None:
    tokens = MemoryTokens()
    async with Served(tokens=tokens) as served:
        assert await served.put(Owner(HEIR.token, group="größe / 1\n")) == 204
    assert tokens._highest == {"größe / 1\n/sites/3": HEIR.token}
