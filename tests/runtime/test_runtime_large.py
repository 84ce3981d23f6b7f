"""Large messages of clients: their parts are counted before they are decoded."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import pytest
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, session_pb2
from muster_runtime.loop_share import LoopShare
from muster_runtime.rpc import large
from muster_runtime.rpc.large import LARGE_BYTES, PARTS_MAX, UNCOUNTED_BYTES, Undecoded, read_message
from muster_runtime.rpc.quotas.connection import Connection
from muster_runtime.rpc.quotas.work import WorkInHand
from muster_runtime.rpc.refusals import InvalidArgument, ResourceExhausted
from muster_runtime.rpc.sizes import size_of
from muster_runtime.turns import Turns

FETCH = coordinator_pb2.OffsetFetchRequest
Group = FETCH.Group


class Debts:
    """What a connection owes."""

    def __init__(self, *, spent: bool = False, who: str = "", decoding: Turns | None = None) -> None:
        self.owed = 0
        self._spent = spent
        self._who = who
        self._decoding = decoding or Turns()
        self.work = WorkInHand(1 << 20)

    def begin_waiting(self, size_bytes: int) -> int:
        return self.work.begin(self._who, size_bytes)

    def end_waiting(self, counted_bytes: int) -> None:
        self.work.end(self._who, counted_bytes)

    def turn_to_decode(self) -> AbstractAsyncContextManager[None]:
        return self._decoding.turn(self._who)

    def check_decoding(self) -> None:
        if self._spent:
            raise ResourceExhausted("it owes too much", 1_000)

    def owe_partitions(self, number: int) -> None:
        self.owed += number


class Came:
    """A large message of a connection.

    Attributes:
        debts: of the connection.
        decodings: how often it was decoded.
    """

    def __init__(self, message_type: Any, body: bytes, debts: Debts | None = None) -> None:
        self.debts = debts or Debts()
        self.decodings = 0
        self._message_type = message_type
        connection = cast("Connection", self.debts)
        self._message = Undecoded(body, self._decode, message_type.DESCRIPTOR, connection, in_stream=False)

    async def decoded(self) -> Any:
        return await self._message.decoded()

    async def read(self) -> Undecoded:
        return self._message

    def _decode(self, body: bytes) -> Any:
        self.decodings += 1
        return self._message_type.FromString(body)


def fetch(*groups: Group) -> bytes:
    return FETCH(groups=groups).SerializeToString()


def with_topics(number: int, topic: str = "") -> Group:
    return Group(group_id="g", topics=[common_pb2.TopicPartitions(topic=topic)] * number)


def within(field: int, body: bytes) -> bytes:
    """A field with a message of up to 2 MiB."""
    size = len(body)
    return bytes([field << 3 | 2, size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + body


def part(field: int, body: bytes) -> bytes:
    """A field with less than 128 bytes."""
    return bytes([field << 3 | 2, len(body)]) + body


OLD_FORM = b"\xfb\xff\xff\xff\x0f" + part(1, b"\x7a") + b"\xfc\xff\xff\xff\x0f"
NUMBERS = b"\x10\x01" * (PARTS_MAX + 1)
TOO_MANY = {
    "groups": (FETCH, fetch(*[Group()] * (PARTS_MAX + 1))),
    "topics": (FETCH, fetch(with_topics(PARTS_MAX))),
    "topics of several": (FETCH, fetch(*[with_topics(PARTS_MAX // 4)] * 5)),
    "topics with names": (FETCH, fetch(with_topics(PARTS_MAX // 2, "t"))),
    "numbers one by one": (
        FETCH,
        within(
            FETCH.DESCRIPTOR.fields_by_name["groups"].number,
            within(Group.DESCRIPTOR.fields_by_name["topics"].number, NUMBERS),
        ),
    ),
    "frames": (
        session_pb2.SessionRequest,
        session_pb2.SessionRequest(frames=[session_pb2.ClientFrame()] * (PARTS_MAX + 1)).SerializeToString(),
    ),
    "unknown fields": (FETCH, b"\xa0\x06\x01" * (PARTS_MAX + 1)),
    "groups of the old form": (FETCH, b"\xa3\x06\xa4\x06" * (PARTS_MAX // 2 + 1)),
    "one text again and again": (
        coordinator_pb2.SyncGroupRequest,
        within(coordinator_pb2.SyncGroupRequest.ASSIGNMENTS_FIELD_NUMBER, b"\x0a\x01m" * (PARTS_MAX + 1)),
    ),
    # In an unknown field of the old form, what looks like a group of the request is none: read as one, its
    # only byte begins a field that would end far behind the message.
    "what a counter would jump over": (
        FETCH,
        OLD_FORM + fetch(*[Group()] * (PARTS_MAX + 1)),
    ),
}


@pytest.mark.parametrize("what", TOO_MANY)
async def test_what_has_too_many_parts_is_refused_undecoded_and_owed(what: str) -> None:
    came = Came(*TOO_MANY[what])
    with pytest.raises(InvalidArgument) as refused:
        await came.decoded()
    assert "the request has more than 400,000 parts" in refused.value.message
    assert came.decodings == 0
    assert came.debts.owed > PARTS_MAX


async def test_what_names_as_much_as_a_call_may_is_decoded() -> None:
    topics = [common_pb2.TopicPartitions(topic=f"t{index}", partitions=[index]) for index in range(100_000)]
    message = FETCH(groups=[Group(group_id="g", topics=topics)])
    body = message.SerializeToString()
    came = Came(FETCH, body)
    decoded = await came.decoded()
    assert decoded == message
    assert size_of(decoded) == len(body)
    assert came.debts.owed == 0


async def test_a_list_of_numbers_in_one_field_and_a_long_text_are_one_part_each() -> None:
    topics = [common_pb2.TopicPartitions(topic="t" * 500_000, partitions=range(500_000))]
    message = FETCH(groups=[Group(group_id="g", topics=topics)])
    assert await Came(FETCH, message.SerializeToString()).decoded() == message


async def test_others_have_their_turn_while_parts_are_counted() -> None:
    turns = 0
    came = Came(FETCH, fetch(*[Group(group_id="g")] * (PARTS_MAX // 2 - 1)))

    async def others() -> None:
        nonlocal turns
        while not came.decodings:
            await asyncio.sleep(0)
            turns += 1

    await asyncio.gather(came.decoded(), others())
    assert turns > 100


async def test_large_messages_are_decoded_one_at_a_time_and_callers_take_turns() -> None:
    """Each leaves half of the loop to others: of a hundred at once that would be a hundredth."""
    decoding, order = Turns(), list[str]()

    async def decoded(who: str, came: Came) -> None:
        await came.decoded()
        order.append(who)

    noise = b"\xa0\x06\x01" * 300_000
    senders = [decoded("many", Came(FETCH, noise, Debts(who="many", decoding=decoding))) for _ in range(4)]
    small = Came(FETCH, fetch(Group(group_id="g" * LARGE_BYTES)), Debts(who="one", decoding=decoding))
    await asyncio.gather(*senders, decoded("one", small))
    assert order == ["many", "many", "one", "many", "many"]


async def test_large_messages_of_streams_that_wait_are_bounded() -> None:
    """Each stream may have one of 8 MiB, and a caller thousands of streams."""
    debts, noise = Debts(), b"\xa0\x06\x01" * 300_000
    for _ in range(2):
        reads = [read_message(Came(FETCH, noise, debts)) for _ in range(3)]
        ended = await asyncio.gather(*reads, return_exceptions=True)
        assert [type(one) for one in ended] == [FETCH, ResourceExhausted, ResourceExhausted]


@pytest.mark.parametrize(
    "body",
    [
        b"\xff" * (UNCOUNTED_BYTES + 1),
        b"\x0a" + b"\x80" * (2 * UNCOUNTED_BYTES) + b"\x01",
        b"\x18" + b"\x80" * (2 * UNCOUNTED_BYTES) + b"\x01",
        b"\x0a\xff\xff\xff\x7f" + b"\x09" * UNCOUNTED_BYTES,
        fetch(*[Group(group_id="g")] * 200_000)[:-1],
    ],
    ids=["no field", "a length without end", "a number without end", "a length beyond the end", "cut off"],
)
async def test_what_is_no_message_is_refused_and_owed(body: bytes) -> None:
    came = Came(FETCH, body)
    with pytest.raises(InvalidArgument) as refused:
        await came.decoded()
    assert "not a valid message" in refused.value.message
    assert came.debts.owed == len(body) // 2


async def test_what_is_no_message_in_the_end_leaves_the_loop_to_others_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LIM-19: that was found out after twenty milliseconds."""
    rests = list[float]()

    async def rest(share: LoopShare) -> None:
        rests.append(share.taken_s)

    monkeypatch.setattr(LoopShare, "rest", rest)
    monkeypatch.setattr(large, "_TURN_S", 0.0)
    with pytest.raises(InvalidArgument):
        await Came(FETCH, fetch(*[Group()] * 50_000)[:-1]).decoded()
    assert len(rests) == 1


@pytest.mark.parametrize("size_bytes", [LARGE_BYTES + 1, UNCOUNTED_BYTES + 1])
async def test_nothing_is_decoded_of_who_owes_too_much(size_bytes: int) -> None:
    came = Came(FETCH, b"\xff" * size_bytes, Debts(spent=True))
    with pytest.raises(ResourceExhausted):
        await came.decoded()
    assert came.decodings == 0
