"""A Kafka broker that answers scripts: the wire of the group calls, in versions without tagged fields."""

import asyncio
import itertools
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from muster_core.events import GroupRequest, GroupResponse
from muster_core.state.group_state import GroupState
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

_STATES = {state.value: state.proto for state in GroupState}
_CREATE_TOPICS, _FIND_COORDINATOR = 19, 10


class _Writer:
    """Builds a request body."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def number(self, form: str, value: int) -> "_Writer":
        self.parts.append(struct.pack(f">{form}", value))
        return self

    def text(self, value: str | None) -> "_Writer":
        if value is None:
            return self.number("h", -1)
        data = value.encode()
        self.number("h", len(data)).parts.append(data)
        return self

    def data(self, value: bytes) -> "_Writer":
        self.number("i", len(value)).parts.append(value)
        return self

    def count(self, items: Any) -> "_Writer":
        return self.number("i", len(items))


class _Reader:
    """Takes an answer's body apart."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def _take(self, size: int) -> bytes:
        self._at += size
        return self._body[self._at - size : self._at]

    def number(self, form: str) -> int:
        value: int = struct.unpack(f">{form}", self._take(struct.calcsize(f">{form}")))[0]
        return value

    def code(self) -> common_pb2.ErrorCode.ValueType:
        return common_pb2.ErrorCode.ValueType(self.number("h"))

    def text(self) -> str:
        return self._take(max(0, self.number("h"))).decode()

    def data(self) -> bytes:
        return self._take(max(0, self.number("i")))

    def each(self) -> range:
        return range(self.number("i"))


def _who(w: _Writer, request: Any) -> _Writer:
    w.text(request.group_id).number("i", request.generation).text(request.member_id)
    return w.text(request.group_instance_id or None)


def _write_join(w: _Writer, request: coordinator_pb2.JoinGroupRequest) -> None:
    w.text(request.group_id).number("i", request.session_timeout_ms).number("i", request.rebalance_timeout_ms)
    w.text(request.member_id).text(request.group_instance_id or None).text(request.protocol_type)
    w.count(request.protocols)
    for protocol in request.protocols:
        w.text(protocol.name).data(protocol.metadata)


def _read_join(r: _Reader) -> coordinator_pb2.JoinGroupResponse:
    r.number("i")
    answer = coordinator_pb2.JoinGroupResponse(error_code=r.code(), generation=r.number("i"))
    answer.protocol_name, answer.leader, answer.member_id = r.text(), r.text(), r.text()
    for _ in r.each():
        answer.members.add(member_id=r.text(), group_instance_id=r.text(), metadata=r.data())
    return answer


def _write_sync(w: _Writer, request: coordinator_pb2.SyncGroupRequest) -> None:
    _who(w, request).count(request.assignments)
    for entry in request.assignments:
        w.text(entry.member_id).data(entry.assignment)


def _read_sync(r: _Reader) -> coordinator_pb2.SyncGroupResponse:
    r.number("i")
    return coordinator_pb2.SyncGroupResponse(error_code=r.code(), assignment=r.data())


def _write_heartbeat(w: _Writer, request: coordinator_pb2.HeartbeatRequest) -> None:
    _who(w, request)


def _read_heartbeat(r: _Reader) -> coordinator_pb2.HeartbeatResponse:
    r.number("i")
    return coordinator_pb2.HeartbeatResponse(error_code=r.code())


def _write_leave(w: _Writer, request: coordinator_pb2.LeaveGroupRequest) -> None:
    w.text(request.group_id).count(request.members)
    for member in request.members:
        w.text(member.member_id).text(member.group_instance_id or None)


def _read_leave(r: _Reader) -> coordinator_pb2.LeaveGroupResponse:
    r.number("i")
    answer = coordinator_pb2.LeaveGroupResponse(error_code=r.code())
    for _ in r.each():
        answer.members.add(member_id=r.text(), group_instance_id=r.text(), error_code=r.code())
    return answer


def _write_commit(w: _Writer, request: coordinator_pb2.OffsetCommitRequest) -> None:
    _who(w, request).count(request.topics)
    for topic in request.topics:
        w.text(topic.name).count(topic.partitions)
        for entry in topic.partitions:
            w.number("i", entry.partition).number("q", entry.offset).number("i", entry.leader_epoch)
            w.text(entry.metadata)


def _read_commit(r: _Reader) -> coordinator_pb2.OffsetCommitResponse:
    r.number("i")
    answer = coordinator_pb2.OffsetCommitResponse()
    for _ in r.each():
        topic = answer.topics.add(name=r.text())
        for _ in r.each():
            topic.partitions.add(partition=r.number("i"), error_code=r.code())
    return answer


def _write_fetch(w: _Writer, request: coordinator_pb2.OffsetFetchRequest) -> None:
    (group,) = request.groups
    w.text(group.group_id).count(group.topics)
    for topic in group.topics:
        w.text(topic.topic).count(topic.partitions)
        for partition in topic.partitions:
            w.number("i", partition)


def _read_fetch(r: _Reader) -> coordinator_pb2.OffsetFetchResponse:
    r.number("i")
    answer = coordinator_pb2.OffsetFetchResponse()
    group = answer.groups.add()
    for _ in r.each():
        topic = group.topics.add(name=r.text())
        for _ in r.each():
            entry = topic.partitions.add(partition=r.number("i"), offset=r.number("q"))
            entry.leader_epoch, entry.metadata = r.number("i"), r.text()
            entry.error_code = r.code()
    group.error_code = r.code()
    return answer


def _write_describe(w: _Writer, request: coordinator_pb2.DescribeGroupsRequest) -> None:
    w.count(request.group_ids)
    for group_id in request.group_ids:
        w.text(group_id)
    w.number("b", 0)


def _read_describe(r: _Reader) -> coordinator_pb2.DescribeGroupsResponse:
    r.number("i")
    answer = coordinator_pb2.DescribeGroupsResponse()
    for _ in r.each():
        group = answer.groups.add(error_code=r.code(), group_id=r.text())
        group.state = _STATES.get(r.text(), coordinator_pb2.GROUP_STATE_UNSPECIFIED)  # with an error
        group.protocol_type, group.protocol_name = r.text(), r.text()
        for _ in r.each():
            member = group.members.add(member_id=r.text(), group_instance_id=r.text())
            member.client_id, member.host = r.text(), r.text()
            member.metadata, member.assignment = r.data(), r.data()
        r.number("i")
    return answer


class _Api(NamedTuple):
    """A call on the wire.

    Attributes:
        key: its number.
        version: of its schema: the last one without tagged fields.
        write: writes a request.
        read: reads an answer.
    """

    key: int
    version: int
    write: Callable[[_Writer, Any], None]
    read: Callable[[_Reader], GroupResponse]


_APIS: dict[type[Any], _Api] = {
    coordinator_pb2.JoinGroupRequest: _Api(11, 5, _write_join, _read_join),
    coordinator_pb2.SyncGroupRequest: _Api(14, 3, _write_sync, _read_sync),
    coordinator_pb2.HeartbeatRequest: _Api(12, 3, _write_heartbeat, _read_heartbeat),
    coordinator_pb2.LeaveGroupRequest: _Api(13, 3, _write_leave, _read_leave),
    coordinator_pb2.OffsetCommitRequest: _Api(8, 7, _write_commit, _read_commit),
    coordinator_pb2.OffsetFetchRequest: _Api(9, 5, _write_fetch, _read_fetch),
    coordinator_pb2.DescribeGroupsRequest: _Api(15, 4, _write_describe, _read_describe),
}


class KafkaBroker:
    """A broker. It answers the calls of a connection one after the other, so each open call has its own.

    Args:
        host: where it listens.
        port: where it listens.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._correlation = itertools.count(1)
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def call(self, request: GroupRequest) -> GroupResponse:
        """Makes a call and waits for its answer."""
        api = _APIS[type(request)]
        body = _Writer()
        api.write(body, request)
        return api.read(await self._ask(api.key, api.version, body))

    async def prepare(self, group_id: str) -> None:
        """Makes the topic `t` of one partition, and waits until the broker coordinates groups."""
        topic = _Writer().number("i", 1).text("t").number("i", 1).number("h", 1)
        await self._ask(_CREATE_TOPICS, 2, topic.count([]).count([]).number("i", 10_000).number("b", 0))
        while True:
            await self._ask(_FIND_COORDINATOR, 1, _Writer().text(group_id).number("b", 0))
            described = await self.call(coordinator_pb2.DescribeGroupsRequest(group_ids=[group_id]))
            assert isinstance(described, coordinator_pb2.DescribeGroupsResponse)
            if described.groups[0].error_code == 0:
                return
            await asyncio.sleep(0.2)

    async def close(self) -> None:
        """Closes the connections that wait for use."""
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()

    async def _ask(self, key: int, version: int, body: _Writer) -> _Reader:
        number = next(self._correlation)
        head = _Writer().number("h", key).number("h", version).number("i", number).text("c")
        message = b"".join([*head.parts, *body.parts])
        connection = self._idle.pop() if self._idle else await self._connect()
        reader, writer = connection
        try:
            writer.write(struct.pack(">i", len(message)) + message)
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            answer = _Reader(await reader.readexactly(size))
        except BaseException:
            writer.close()
            raise
        assert answer.number("i") == number
        self._idle.append(connection)
        return answer

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port)
