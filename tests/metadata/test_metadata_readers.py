"""Those who read logs, the audit trail and results of steps: what they have in memory, and who is deaf."""

import asyncio
import gc
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from abuse.http2 import Connection
from kit.metadata.metadata_instances import WATCH, Writer, metadata_cluster
from kit.waiting import until
from muster_core.position import GENESIS
from muster_metadata import log_stream, readers
from muster_metadata.cluster import trail
from muster_metadata.log.reading import Room, Wanted
from muster_metadata.log.runs import Run
from muster_metadata.log_stream import MAX_OPEN_CALLS, LogStream
from muster_metadata.off import Measures
from muster_metadata.readers import Readers
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_runtime.loop_share import LoopShare
from muster_runtime.rpc.refusals import ResourceExhausted
from muster_runtime.rpc.unread import TimedWrites
from muster_runtime.turns import Turns

MIB = 1 << 20
SERVICE = "/muster.internal.v1.MetadataService/"


class Call:
    """What gRPC gives for a call: here the caller takes what is written once it is let.

    Attributes:
        takes: whether it does.
        taken: what it took.
    """

    def __init__(self, host: str, port: int = 1) -> None:
        self._peer = f"ipv4:{host}:{port}"
        self.takes = asyncio.Event()
        self.taken: list[Any] = []

    def peer(self) -> str:
        return self._peer

    async def write(self, message: Any) -> None:
        await self.takes.wait()
        self.taken.append(message)


class Writes(TimedWrites):
    """Notes whose connection it is to end."""

    def __init__(self) -> None:
        super().__init__(3_600_000)
        self.cut: list[str] = []

    def cut_off(self, peer: str) -> None:
        self.cut.append(peer)


@pytest.fixture
def writes() -> Writes:
    return Writes()


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_a_host_has_half_of_the_room_and_who_finds_none_waits_until_some_is_given_up(
    writes: Writes,
) -> None:
    room = Readers(writes, 64 * MIB)
    with room.reading(Call("10.0.0.1")) as second:
        with room.reading(Call("10.0.0.1")) as first:
            await first.begin()
            await second.begin()
            assert room.used_bytes == 32 * MIB
            with room.reading(Call("10.0.0.1")) as third, room.reading(Call("10.0.0.2")) as other:
                waiting = asyncio.create_task(third.begin())
                await other.begin()
                await turns()
                assert not waiting.done()
                first.has(0)
                await waiting
                assert room.used_bytes == 48 * MIB
        assert room.used_bytes == 16 * MIB
    assert room.used_bytes == 0
    assert not room.awaited


async def test_who_gives_up_room_looks_at_no_more_than_are_let_in(
    writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of five thousand that waited each was looked at whenever room was given up: for six milliseconds."""
    room, looked, has_room = Readers(writes, 64 * MIB), list[str](), Readers.has_room
    let_in = list[int]()

    async def read(number: int, host: str) -> None:
        with room.reading(Call(host)) as reader:
            await reader.begin()
            let_in.append(number)

    with room.reading(Call("10.0.0.1")) as first:
        await first.room(32 * MIB)
        with room.reading(Call("10.0.0.2")) as other:
            await other.room(32 * MIB)
            waiting = [asyncio.create_task(read(number, f"10.0.0.{1 + number % 2}")) for number in range(300)]
            await turns()

            def noted(self: Readers, host: str, size_bytes: int) -> bool:
                looked.append(host)
                return has_room(self, host, size_bytes)

            monkeypatch.setattr(Readers, "has_room", noted)
            other.has(31 * MIB)
            assert sorted(looked) == ["10.0.0.1", "10.0.0.2"]
            waiting[0].cancel()
            await turns()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert sorted(let_in) == list(range(1, 300))
    assert [one for one in let_in if one % 2] == list(range(1, 300, 2))
    assert len(looked) < 6 * 300
    assert (room.used_bytes, room.awaited) == (0, False)


async def test_who_waits_and_gives_up_leaves_the_room_as_it_was(writes: Writes) -> None:
    room = Readers(writes, 64 * MIB)
    with room.reading(Call("10.0.0.1")) as first, room.reading(Call("10.0.0.1")) as second:
        await first.room(32 * MIB)
        before = asyncio.create_task(second.begin())
        await turns()
        before.cancel()
        await asyncio.gather(before, return_exceptions=True)
        assert not room.awaited
        given_and_cancelled = asyncio.create_task(second.begin())
        await turns()
        first.has(0)  # it has its room, and does not know yet
        given_and_cancelled.cancel()
        await asyncio.gather(given_and_cancelled, return_exceptions=True)
        assert room.used_bytes == 0
        await first.room(20 * MIB)
        await second.room(12 * MIB)
        large, small = (
            asyncio.create_task(first_of(room, 32 * MIB)),
            asyncio.create_task(first_of(room, 4 * MIB)),
        )
        await turns()
        second.has(0)
        await turns()
        assert not small.done()
        large.cancel()  # nobody gives up room, and there is some for who waited behind it
        await small


async def first_of(room: Readers, size_bytes: int) -> None:
    with room.reading(Call("10.0.0.1")) as reader:
        await reader.room(size_bytes)


async def test_who_waits_for_long_is_refused_with_what_the_others_have(
    writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "_WAIT_S", 0.05)
    room = Readers(writes, 64 * MIB)
    with room.reading(Call("10.0.0.1")) as first, room.reading(Call("10.0.0.1")) as second:
        await first.room(32 * MIB)
        with pytest.raises(ResourceExhausted, match="33,554,432 bytes"):
            await second.begin()
        assert not writes.cut  # one who loads many logs takes one page after the other
    assert room.used_bytes == 0


async def test_what_is_read_ahead_has_its_room_and_is_not_where_others_wait(writes: Writes) -> None:
    room = Readers(writes, 128 * MIB)
    with room.reading(Call("10.0.0.1")) as first, room.reading(Call("10.0.0.1")) as second:
        await first.begin()
        assert first.may_read_ahead()
        assert room.used_bytes == 32 * MIB
        await first.begin()  # what was read ahead, in place of what was taken
        assert room.used_bytes == 16 * MIB
        await first.room(48 * MIB)
        assert not first.may_read_ahead()  # it is little that is left of the half
        await first.room(64 * MIB)
        waiting = asyncio.create_task(second.begin())
        await turns()
        assert room.awaited
        with room.reading(Call("10.0.0.2")) as other:
            assert not other.may_read_ahead()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert room.used_bytes == 0


class Stream:
    """A stream of steps that name nothing, with whoever may not take their results."""

    def __init__(self, room: Readers) -> None:
        self.call = Call("10.0.0.1")
        self.read = 0
        self._room = room

    async def requests(self, count: int, calls: int) -> AsyncIterator[metadata_pb2.LogRequest]:
        for _ in range(count):
            self.read += 1
            yield metadata_pb2.LogRequest(calls=[metadata_pb2.LogCall()] * calls)

    async def serve(self, count: int, calls: int, large: Turns) -> None:
        unused: Any = None
        with self._room.reading(self.call) as reader:
            stream = LogStream(unused, unused, 1, reader, large, Measures())
            await stream.serve(self.requests(count, calls), asyncio.Event())

    @property
    def results(self) -> int:
        return sum(len(response.results) for response in self.call.taken)


@pytest.mark.parametrize("calls", [1, 256, 257, 10_000])
async def test_results_that_are_not_taken_stop_the_reading_of_requests(
    writes: Writes, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Readers(writes, 64 * MIB)
    stream, count = Stream(room), 3 * MAX_OPEN_CALLS // calls + 5
    serving = asyncio.create_task(stream.serve(count, calls, Turns()))
    await until(lambda: room.used_bytes > 0, "it waits until its results are taken")
    read = stream.read
    await turns(100)
    assert stream.read == read < count
    # What the one write has that is not taken, and as many more.
    assert read * calls <= 2 * MAX_OPEN_CALLS + 2 * calls
    stream.call.takes.set()
    await serving
    assert stream.results == count * calls
    assert room.used_bytes == 0
    assert not writes.cut


async def test_a_message_that_waits_for_its_results_to_be_taken_has_its_room_or_its_stream_ends(
    writes: Writes,
) -> None:
    room = Readers(writes, 64 * MIB)
    stream = Stream(room)
    with room.reading(Call("10.0.0.1")) as reader:
        await reader.room(32 * MIB)
        serving = asyncio.create_task(stream.serve(2, 10_000, Turns()))
        await until(lambda: bool(writes.cut), "it is cut off")
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        assert room.used_bytes == 32 * MIB


async def test_large_messages_of_many_streams_are_gone_through_one_at_a_time(
    writes: Writes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hundred streams with twenty thousand calls in a message held all others for eleven seconds."""
    ticks, began_in = 0, dict[int, int]()
    real = LogStream._begin

    def begin(self: LogStream, call: metadata_pb2.LogCall) -> None:
        began_in[ticks] = began_in.get(ticks, 0) + 1
        real(self, call)

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(LogStream, "_begin", begin)
    room, large = Readers(writes, 64 * MIB), Turns()
    streams = [Stream(room) for _ in range(20)]
    for stream in streams:
        stream.call.takes.set()
    ticking = asyncio.create_task(tick())
    await asyncio.gather(*(stream.serve(1, 2_000, large) for stream in streams))
    ticking.cancel()
    assert {stream.results for stream in streams} == {2_000}
    assert max(began_in.values()) <= 2 * log_stream._STEP_CALLS


async def test_the_trail_is_put_in_order_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    rests = 0

    async def rest(_: LoopShare) -> None:
        nonlocal rests
        rests += 1

    monkeypatch.setattr(trail, "_TURN_S", -1.0)
    monkeypatch.setattr(LoopShare, "rest", rest)
    rows = [(secrets.randbelow(50), secrets.token_bytes(2)) for _ in range(20 * trail._STEP + 1)]
    assert await trail._in_order(rows) == sorted(rows)
    assert rests == 2 * 21
    assert await trail._in_order(list[tuple[int]]()) == []


class CountedRoom(Room):
    """Room that counts the pages with entries that are in memory while one waits for it."""

    def __init__(self) -> None:
        self.pages: list[int] = []

    async def begin(self) -> None:
        """See `Room`."""
        there = [one for one in gc.get_objects() if isinstance(one, Run)]
        self.pages.append(len(there))

    def may_read_ahead(self) -> bool:
        """See `Room`."""
        return False


@pytest.mark.cluster
async def test_nothing_of_a_page_stays_while_the_next_one_waits_for_room(tmp_path: Path) -> None:
    async with metadata_cluster(tmp_path, 1, shards=1) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        for _ in range(40):
            await writer.append(cluster[0], b"w:1")
        room, entries = CountedRoom(), 0
        wanted = Wanted(0, GENESIS, writer.epoch, writer.nonce)
        async for page in cluster[0].server.metadata.reader.read(wanted, room):
            entries += len(page.entries)
            del page
        assert entries >= 40
        assert len(room.pages) >= 3
        assert set(room.pages) == {0}


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("method", "request_of"),
    [
        ("ReadLog", lambda: metadata_pb2.ReadLogRequest(shard=0)),
        ("ReadTrail", metadata_pb2.ReadTrailRequest),
        ("Watch", lambda: WATCH),
        ("Log", lambda: metadata_pb2.LogRequest(calls=[metadata_pb2.LogCall()])),
        ("Lease", metadata_pb2.LeaseRequest),
    ],
    ids=["ReadLog", "ReadTrail", "Watch", "Log", "Lease"],
)
async def test_who_does_not_read_in_time_loses_the_connection(
    method: str, request_of: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_SERVER_READ_TIMEOUT_MS", "300")
    async with metadata_cluster(tmp_path, 1, shards=1) as cluster:
        writer = Writer(0)
        await writer.own(cluster[0])
        await writer.append(cluster[0], b"w:1")
        host, port = cluster[0].address.split(":")
        deaf = await asyncio.to_thread(Connection, f"{host}:{port}", 0)

        def ended() -> bool:
            deaf.poll(0.05)
            return deaf.dead

        deaf.poll(1)  # the server takes the window in with its settings
        deaf.open(SERVICE + method, request_of().SerializeToString())
        await until(ended, "the connection is cut")
        deaf.close()
        assert len(await cluster[0].read(0, writer)) >= 2
