"""Messages of all kinds, drawn: random but coherent, so that they get past the first check."""

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import Message
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, incremental_pb2

_NUMBERS = (0, 1, -1, 2, 3, 5, 100, 1_000, 6_000, 30_000, 1_800_000, 1_800_001, 2**31 - 1, -(2**31), 2**15)
_TEXTS = (
    *("", "a", "range", "consumer", "\x00", "\n", "\x1b[31m", "\u202e", "\u200b", "x" * 255, "x" * 256),
    *("x" * 5_000, "é" * 128, "..", ".", "Stable", "classic", "[/red]", "%s", "{}", "🦀" * 60),
)
_INCREMENTAL_IDS = ("m1", "m2", "m3")
_TOPICS = ("t", "u.v", "x" * 249, "é", "", ".", "a b", "nope")


class DrawnMessages:
    """Makes messages, and learns members and generations from answers.

    Args:
        source: of all draws.
    """

    def __init__(self, source: random.Random) -> None:
        self.random = source
        self.groups = [*(f"fuzz-{number}" for number in range(8)), "", "g" * 255, "é" * 127, "[red]"]
        self.members: dict[str, list[str]] = defaultdict(list)
        self.generations: dict[str, int] = {}
        self.epochs: dict[tuple[str, str], int] = {}

    def message(self, kind: type[Message]) -> Any:
        """A message of a kind; often about a member that exists."""
        message: Any = kind()
        self._fill(message, 0)
        known = [group for group, members in self.members.items() if members]
        if hasattr(message, "group_id") and known and self.random.random() < 0.6:
            self._make_coherent(message, self.random.choice(known))
        elif (
            isinstance(message, incremental_pb2.ConsumerGroupHeartbeatRequest) and self.random.random() < 0.6
        ):
            message.group_id = self.random.choice(self.groups[:8])
            self._make_a_heartbeat(message)
        elif isinstance(message, coordinator_pb2.JoinGroupRequest) and self.random.random() < 0.6:
            message.Clear()
            message.group_id = self.random.choice(self.groups[:8])
            self._make_acceptable(message)
        return message

    def changed(self, body: bytes) -> bytes:
        """Bytes with something changed."""
        made = bytearray(body)
        for _ in range(self.random.choice((1, 1, 2, 5))):
            at = self.random.randrange(len(made) + 1)
            match self.random.randrange(3):
                case 0:
                    made[at:at] = self.random.randbytes(self.random.randrange(1, 9))
                case 1 if at < len(made):
                    made[at] = self.random.randrange(256)
                case _:
                    del made[at:]
        return bytes(made)

    def learn(self, request: Any, answer: Any) -> None:
        """Remembers the member that an answer names."""
        member_id, group_id = getattr(answer, "member_id", ""), getattr(request, "group_id", "")
        if member_id and group_id:
            members = self.members[group_id]
            if member_id not in members:
                members.append(member_id)
                del members[:-6]
            if getattr(answer, "member_epoch", 0) > 0:
                self.epochs[group_id, member_id] = answer.member_epoch
            if getattr(answer, "generation", 0) > 0:
                self.generations[group_id] = answer.generation

    def _make_coherent(self, message: Any, group_id: str) -> None:
        message.group_id = group_id
        if hasattr(message, "member_id"):
            message.member_id = self.random.choice(self.members[group_id][-4:])
        if hasattr(message, "generation") and group_id in self.generations and self.random.random() < 0.9:
            message.generation = self.generations[group_id]
        if hasattr(message, "group_instance_id") and self.random.random() < 0.8:
            message.group_instance_id = ""
        if isinstance(message, incremental_pb2.ConsumerGroupHeartbeatRequest):
            self._make_a_heartbeat(message)
        elif isinstance(message, coordinator_pb2.SyncGroupRequest):
            del message.assignments[:]
            for member_id in self.members[group_id][-4:]:
                message.assignments.add(member_id=member_id, assignment=self._bytes())
            message.protocol_type = message.protocol_name = ""
        elif isinstance(message, coordinator_pb2.JoinGroupRequest) and self.random.random() < 0.8:
            self._make_acceptable(message)

    def _make_a_heartbeat(self, message: Any) -> None:
        """One of an incremental group: mostly a join, or the next beat of one that was answered."""
        choose, group_id = self.random.choice, message.group_id
        if self.random.random() < 0.3:
            return
        message.Clear()
        message.group_id, message.member_id = group_id, choose(_INCREMENTAL_IDS)
        message.member_epoch = choose((0, 0, self.epochs.get((group_id, message.member_id), 1), 1, -1))
        if choose((True, True, False)):
            message.member_seq, message.process_id = choose((1, 1, 2)), bytes(16)
        if not message.member_epoch:
            message.rebalance_timeout_ms = choose((50, 500))
            message.topics.names.append("t")
            message.owned.SetInParent()
        elif choose((True, False)):
            message.owned.topics.add(topic="t", partitions=[0])
        if message.member_seq and message.member_epoch > 0:
            message.version.SetInParent()

    def _make_acceptable(self, message: Any) -> None:
        kept = (message.group_id, message.member_id, message.group_instance_id)
        message.Clear()
        message.group_id, message.member_id, message.group_instance_id = kept
        message.protocol_type = "consumer"
        message.session_timeout_ms = self.random.choice((100, 1_000))
        message.rebalance_timeout_ms = self.random.choice((50, 500))
        message.protocols.add(name="range", metadata=self._bytes()[:60_000])

    def _fill(self, message: Any, depth: int) -> None:
        chance = self.random.random
        for field in message.DESCRIPTOR.fields:
            oneof = field.containing_oneof
            if oneof is not None and (message.WhichOneof(oneof.name) or chance() > 1.5 / len(oneof.fields)):
                continue
            if chance() < 0.12 or (field.type == Field.TYPE_MESSAGE and depth > 4):
                continue
            if not field.is_repeated:
                self._set(message, field, depth)
                continue
            for _ in range(self.random.choice((0, 1, 1, 2, 3, 17))):
                if field.type == Field.TYPE_MESSAGE:
                    self._fill(getattr(message, field.name).add(), depth + 1)
                else:
                    getattr(message, field.name).append(self._value(field))

    def _set(self, message: Any, field: Any, depth: int) -> None:
        if field.type == Field.TYPE_MESSAGE:
            getattr(message, field.name).SetInParent()
            self._fill(getattr(message, field.name), depth + 1)
        else:
            setattr(message, field.name, self._value(field))

    def _value(self, field: Any) -> Any:
        makers: dict[int, Callable[[], Any]] = {
            Field.TYPE_STRING: lambda: self._text(field.name),
            Field.TYPE_BYTES: self._bytes,
            Field.TYPE_BOOL: lambda: self.random.random() < 0.5,
            Field.TYPE_ENUM: lambda: self.random.choice((0, 1, 2, 99)),
        }
        if field.type in makers:
            return makers[field.type]()
        value = self.random.choice(_NUMBERS)
        if field.name == "generation" and self.generations and self.random.random() < 0.7:
            value = self.random.choice(list(self.generations.values()))
        elif field.name.endswith("_ms") and self.random.random() < 0.8:
            value = self.random.choice((0, 10, 100, 1_000))
        elif field.name in ("partition", "partitions", "member_seq") and self.random.random() < 0.8:
            value = self.random.choice((0, 1, 2, 3))
        unsigned = {Field.TYPE_UINT32: 2**32, Field.TYPE_UINT64: 2**64}.get(field.type)
        return value % unsigned if unsigned else value

    def _text(self, name: str) -> str:
        choose = self.random.choice
        if name in ("group_id", "group_ids"):
            return choose(self.groups)
        if name == "member_id":
            known = self.members.get(choose(self.groups))
            return choose(known) if known else choose(_TEXTS)
        if name in ("topic", "name", "names"):
            return choose((*_TOPICS, "range", choose(_TEXTS)))
        if name in ("group_instance_id", "request_id", "server_assignor", "page_token"):
            return choose(("", "", "", "i1", "i2", choose(_TEXTS)))
        if name == "protocol_type":
            return choose(("consumer", "consumer", "", choose(_TEXTS)))
        return choose(_TEXTS)

    def _bytes(self) -> bytes:
        topics = [
            common_pb2.TopicPartitions(topic=self.random.choice(_TOPICS), partitions=[0, 1, 2**32 - 1])
            for _ in range(self.random.randrange(3))
        ]
        match self.random.randrange(5):
            case 0:
                return common_pb2.Assignment(version=1, partitions=topics).SerializeToString()
            case 1:
                made = common_pb2.Subscription(version=1, topics=["t"], owned_partitions=topics)
                return made.SerializeToString()
            case 2:
                return self.random.randbytes(self.random.randrange(200))
            case 3:
                return bytes(self.random.choice((0, 65_535, 65_537)))
            case _:
                return b""
