"""Requests that break every limit of the API: bytes, sizes, headers, ids, numbers, lists, paths.

Must hold: each is answered with the status that it deserves and a text that names the field or the limit,
what is within the limits is answered too, and no process says that something failed.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from abuse.caller import GROUPS, commit, connection, groups_stub, join, joined, name_of, raw
from abuse.lab import Lab, Target, begins, stage
from abuse.message_fuzz import DISCOVERY, DISCOVERY_CALLS, GROUP_CALLS
from google.protobuf.message import Message
from kit.programs import Broken
from muster_protos.muster.v1 import coordinator_pb2, discovery_pb2

BAD = grpc.StatusCode.INVALID_ARGUMENT
FULL = grpc.StatusCode.RESOURCE_EXHAUSTED
UNKNOWN = grpc.StatusCode.UNIMPLEMENTED
OK = grpc.StatusCode.OK
HEARTBEAT = GROUPS + "Heartbeat"
MIB = 1 << 20
INT32_MAX = 2**31 - 1
TROUBLE = ("rpc_failed", "Traceback", '"level": "error"')

INVISIBLE = {
    "newline": "a\nb",
    "NUL": "a\0b",
    "ESC": "a\x1b[31mb",
    "C1": "a\x9b31mb",
    "bidi": "a\u202eb",
    "isolate": "a\u2066b",
    **{
        f"U+{ord(sign):04X}": f"a{sign}b"
        for sign in "\u2028\u200b\u200d\ufeff\xad\u3164\u180e\u2060\ufff9\U000e0041"
    },
    "CRLF": "a\r\nFLUSHALL\r\n",
    "256 bytes": "a" * 256,
    "256 bytes of two each": "é" * 128,
}
"""What an id must not have."""

HARMLESS = (
    " ",
    "[red]x[/red]",
    "<script>",
    "../../etc/passwd",
    "muster:{0}:log",
    "\u0430dmin",
    "a\uffff",
    "\ue000",
)
"""What it may have."""


@dataclass(frozen=True)
class Case:
    """A request and what it must be answered.

    Attributes:
        what: for the table of a failure.
        method: path.
        body: of the request.
        status: of the answer.
        names: what the text of a refusal must contain.
        headers: of the call.
    """

    what: str
    method: str
    body: bytes
    status: grpc.StatusCode = BAD
    names: str = ""
    headers: tuple[tuple[str, str], ...] = ()


def case(what: str, call: str, message: Message, names: str, status: grpc.StatusCode = BAD) -> Case:
    """A message that is not right in one place."""
    path = DISCOVERY if call in DISCOVERY_CALLS else GROUPS
    return Case(what, path + call, message.SerializeToString(), status, names)


def unknown_field(size: int) -> bytes:
    """Bytes of a field that no message has."""
    length, made = size, bytearray()
    while length >= 128:
        made.append(length % 128 | 128)
        length //= 128
    return b"\xfa\x01" + bytes([*made, length]) + bytes(size)


def bytes_and_sizes() -> Iterator[Case]:
    noise = random.Random(1)
    for call in GROUP_CALLS:
        yield Case(f"{call} of noise", GROUPS + call, b"\xff" + noise.randbytes(200))
    for call in DISCOVERY_CALLS:
        yield Case(f"{call} of noise", DISCOVERY + call, b"\xff" + noise.randbytes(200))
    for what, body in (
        ("text that is no UTF-8", b"\x0a\x02\xff\xfe"),
        ("a number that breaks off", b"\x10\xff\xff"),
        ("a length of 2 GiB", b"\x0a\xff\xff\xff\xff\x07abc"),
        ("groups without an end", b"\xf3\x01" * 5_000 + b"\xf4\x01" * 4_999),
    ):
        yield Case(what, HEARTBEAT, body)
    for size, status in ((MIB + 100, BAD), (4 * MIB + 100, BAD), (10 * MIB, FULL), (64 * MIB, FULL)):
        yield Case(f"{size:,} bytes", HEARTBEAT, unknown_field(size), status, "larger than")
    for path in ("/muster.v1.GroupCoordinatorService/Nope", "/nope.Nope/Nope", "/x", "//", "/" + "a" * 4_000):
        yield Case(f"path {path[:20]}", path, b"", UNKNOWN)
    for path in ("/muster.internal.v1.MetadataService/ReadLog", DISCOVERY + "CreateTopic"):
        yield Case(f"{path} at a coordinator", path, b"", UNKNOWN)


def headers() -> Iterator[Case]:
    """Up to the limit they count; far above it the call is refused, with a text."""
    body = coordinator_pb2.HeartbeatRequest(group_id="g", member_id="m").SerializeToString()
    yield Case("a header of 4 KiB", HEARTBEAT, body, OK, headers=(("x-long", "v" * 4_096),))
    many = tuple((f"x-{number}", "v" * 50) for number in range(1_000))
    for what, given in (("a header of 64 KiB", (("x-long", "v" * 65_536),)), ("1,000 headers", many)):
        yield Case(what, HEARTBEAT, body, FULL, "metadata", headers=given)


def texts(group: str) -> Iterator[Case]:
    for what, text in INVISIBLE.items():
        yield case(
            f"group id: {what}",
            "Heartbeat",
            coordinator_pb2.HeartbeatRequest(group_id=text, member_id="m"),
            "group_id",
        )
    for text in HARMLESS:
        yield case(
            f"group id {text!r}",
            "Heartbeat",
            coordinator_pb2.HeartbeatRequest(group_id=text, member_id="m"),
            "",
            OK,
        )
    for what, text in (("ESC", "a\x1b[31mb\n"), ("bidi", "\u202eabc")):
        leaver = coordinator_pb2.LeaveGroupRequest.Member(member_id="m", reason=text)
        for field in ("reason", "client_id", "protocol_type", "request_id", "member_id", "group_instance_id"):
            yield case(f"{field}: {what}", "JoinGroup", join(group, **{field: text}), field)
        yield case(
            f"name of a protocol: {what}",
            "JoinGroup",
            join(group, protocols=[coordinator_pb2.GroupProtocol(name=text)]),
            "protocols[0].name",
        )
        yield case(
            f"reason of leaving: {what}",
            "LeaveGroup",
            coordinator_pb2.LeaveGroupRequest(group_id=group, members=[leaver]),
            "members[0].reason",
        )
        yield case(f"committed topic: {what}", "OffsetCommit", commit(group, ONE, text), "topics[0].name")


def find(*group_ids: str) -> discovery_pb2.FindCoordinatorRequest:
    return discovery_pb2.FindCoordinatorRequest(group_ids=group_ids)


def create(topic: str, partitions: int) -> discovery_pb2.CreateTopicRequest:
    return discovery_pb2.CreateTopicRequest(topic=discovery_pb2.Topic(name=topic, partitions=partitions))


ONE = [coordinator_pb2.OffsetCommitRequest.Partition(offset=1)]


def numbers_and_lists(group: str) -> Iterator[Case]:
    for field, values in (
        ("rebalance_timeout_ms", (-1, -(2**31))),
        ("disconnect_grace_ms", (-1, 1_800_001, INT32_MAX)),
    ):
        for value in values:
            yield case(f"{field} {value}", "JoinGroup", join(group, **{field: value}), field)
    partition, topic = (
        coordinator_pb2.OffsetCommitRequest.Partition,
        coordinator_pb2.OffsetCommitRequest.Topic,
    )
    for wrong, name in (
        (partition(offset=-1), "topics[0].partitions[0].offset"),
        (partition(offset=-(2**63)), "topics[0].partitions[0].offset"),
        (partition(offset=1, leader_epoch=-2), "topics[0].partitions[0].leader_epoch"),
        (partition(offset=1, metadata="m" * 65_537), "topics[0].partitions[0].metadata"),
    ):
        yield case(name, "OffsetCommit", commit(group, [wrong]), name)
    for value in (-1, 2**63 - 1):
        yield case(
            f"retention {value}", "OffsetCommit", commit(group, ONE, retention_ms=value), "retention_ms"
        )
    many = [topic(name="t", partitions=[partition(partition=n, offset=1) for n in range(10_001)])]
    for what, topics, name in (
        ("a topic twice", [topic(name="t", partitions=ONE)] * 2, "topics[1].name"),
        ("a partition twice", [topic(name="t", partitions=ONE * 2)], "topics[0].partitions[1]"),
        ("10,001 partitions", many, "topics"),
    ):
        yield case(
            what,
            "OffsetCommit",
            coordinator_pb2.OffsetCommitRequest(group_id=group, generation=-1, topics=topics),
            name,
        )
    protocol = coordinator_pb2.GroupProtocol
    for what, protocols, name in (
        ("17 protocols", [protocol(name=f"p{n}") for n in range(17)], "protocols"),
        ("10,000 protocols", [protocol(name=f"p{n}") for n in range(10_000)], "protocols"),
        ("a protocol twice", [protocol(name="p")] * 2, "protocols[1].name"),
        ("long metadata", [protocol(name="p", metadata=bytes((512 << 10) + 1))], "protocols[0].metadata"),
    ):
        yield case(what, "JoinGroup", join(group, protocols=protocols), name)
    given = coordinator_pb2.SyncGroupRequest.Assignment
    for what, assignments, name in (
        ("a long assignment", [given(member_id="m", assignment=bytes(MIB + 1))], "assignments[0].assignment"),
        ("100,001 assignments", [given(member_id=f"m{n}") for n in range(100_001)], "assignments"),
    ):
        yield case(
            what, "SyncGroup", coordinator_pb2.SyncGroupRequest(group_id=group, assignments=assignments), name
        )
    for name in ("..", "", "a\x1b", "\u202e", "t" * 250):
        yield case(f"topic {name!r}", "CreateTopic", create(name, 1), "topic.name")
    for number in (0, 100_001):
        yield case(f"{number} partitions", "CreateTopic", create("t", number), "topic.partitions")
    fetched = coordinator_pb2.OffsetFetchRequest.Group
    yield case(
        "1,001 groups",
        "OffsetFetch",
        coordinator_pb2.OffsetFetchRequest(groups=[fetched()] * 1_001),
        "groups",
    )
    yield case(
        "1,001 groups",
        "DescribeGroups",
        coordinator_pb2.DescribeGroupsRequest(group_ids=["a"] * 1_001),
        "group_ids",
    )
    yield case("1,001 groups", "FindCoordinator", find(*["a"] * 1_001), "group_ids")
    yield case(
        "a long history",
        "GroupHistory",
        coordinator_pb2.GroupHistoryRequest(group_id=group, limit=2**32 - 1),
        "limit",
    )
    yield case(
        "101 states", "ListGroups", coordinator_pb2.ListGroupsRequest(states=["Stable"] * 101), "states"
    )


async def answered(channels: dict[str, grpc.aio.Channel], case: Case) -> None:
    """Raises `Broken` unless a case is answered as it must be."""
    path = DISCOVERY if case.method.startswith(DISCOVERY) and "at a coordinator" not in case.what else GROUPS
    status, _, text = await raw(channels[path], case.method, case.body, timeout_s=60, metadata=case.headers)
    if status is not case.status or (status is not OK and (not text or case.names not in text)):
        due = f"{case.status.name} {case.names!r}"
        raise Broken(f"{case.what}: {due} was due, came {status.name} {text[:200]!r}")


OUTCOMES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("INVALID_SESSION_TIMEOUT", {"session_timeout_ms": -(2**31)}),
    ("INVALID_SESSION_TIMEOUT", {"session_timeout_ms": 1_800_001}),
    ("INVALID_SESSION_TIMEOUT", {"session_timeout_ms": INT32_MAX}),
    ("INCONSISTENT_GROUP_PROTOCOL", {"protocols": []}),
)
"""Joins that the group protocol refuses."""


async def outcomes(stub: Any, group: str) -> None:
    """Raises `Broken` unless what the protocol refuses has its error code."""
    for name, fields in OUTCOMES:
        answer = await stub.JoinGroup(join(group, **fields), timeout=10)
        expect(f"a join with {fields}", answer.error_code, name)
    expect("a plan with members that are not there", await too_large_a_plan(stub, group), "NONE")


def expect(what: str, code: int, name: str) -> None:
    if name_of(code) != name:
        raise Broken(f"{what} was answered {name_of(code)}, not {name}")


async def too_large_a_plan(stub: Any, group: str) -> int:
    """A leader assigns 1 MiB to itself and to two who are not there: strangers are ignored."""
    member_id, _ = await joined(stub, group)
    again = await stub.JoinGroup(join(group, member_id=member_id), timeout=20)
    ids = (member_id, "z1", "z2")
    given = [
        coordinator_pb2.SyncGroupRequest.Assignment(member_id=name, assignment=bytes(MIB)) for name in ids
    ]
    request = coordinator_pb2.SyncGroupRequest(
        group_id=group, generation=again.generation, member_id=member_id, assignments=given
    )
    code: int = (await stub.SyncGroup(request, timeout=20)).error_code
    return code


async def attack(target: Target) -> str:
    group, led = await target.groups(2, "bad")
    begins()
    tried = 0
    async with connection(target.owner) as groups, connection(target.servers) as topics:
        channels = {GROUPS: groups, DISCOVERY: topics}
        for source in (bytes_and_sizes(), headers(), texts(group), numbers_and_lists(group)):
            for one in source:
                await answered(channels, one)
                tried += 1
        await outcomes(groups_stub(groups), led)
    return f"{tried} requests were refused with their reason, {len(OUTCOMES)} answered with their error code"


async def nothing_failed(lab: Lab) -> None:
    if lines := lab.log_lines(*TROUBLE):
        raise Broken(f"{len(lines)} lines of trouble in the logs, the first: {lines[0][:500]}")


if __name__ == "__main__":
    stage(attack, check=nothing_failed)
