"""Random but coherent messages to all calls and to session streams: nothing raises, the log stays in order.

./x abuse message_fuzz -- SEED MESSAGES

Half of the messages are about real members and generations, so that they get past the first check; some have
bytes changed. Must hold: no answer says that the server failed in a way it did not foresee, no process logs
an error, W goes on, and `muster verify` finds the log clean.
"""

import asyncio
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
from abuse.caller import GROUPS, connection, raw
from abuse.lab import Lab
from abuse.session import Session
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import Message
from kit.programs import Broken, report, run
from muster_core.protocol.joins import STATIC_WITH_A_NEW_ID
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, discovery_pb2, session_pb2

DISCOVERY = "/muster.v1.CoordinatorDiscoveryService/"
DISCOVERY_CALLS = (
    "FindCoordinator",
    "DescribeCluster",
    "ListTopics",
    "CreateTopic",
    "AlterTopic",
    "DeleteTopic",
)
GROUP_CALLS = (
    *("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "OffsetCommit", "OffsetFetch", "OffsetDelete"),
    *("DescribeGroups", "ListGroups", "DeleteGroups", "GroupHistory"),
)
FRAMES = {
    "join_group": "JoinGroup",
    "sync_group": "SyncGroup",
    "heartbeat": "Heartbeat",
    "leave_group": "LeaveGroup",
    "offset_commit": "OffsetCommit",
    "offset_fetch": "OffsetFetch",
}
PARKED = ("JoinGroup", "SyncGroup")
UNARY_CALLERS = 16
STREAMS = 4
SETTINGS = {
    "MUSTER_GROUP_MIN_SESSION_TIMEOUT_MS": "50",
    "MUSTER_GROUP_INITIAL_REBALANCE_DELAY_MS": "50",
    "MUSTER_GROUP_RETENTION_CHECK_INTERVAL_MS": "2000",
    "MUSTER_GROUP_OFFSETS_RETENTION_MS": "5000",
    "MUSTER_SHARD_LOG_SNAPSHOT_RECORDS": "500",
}
TROUBLE = ("rpc_failed", "session_failed", "call_failed", "tick_failed", "append_done_failed", "Traceback")
FORESEEN = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}

_NUMBERS = (0, 1, -1, 2, 3, 5, 100, 1_000, 6_000, 30_000, 1_800_000, 1_800_001, 2**31 - 1, -(2**31), 2**15)
_TEXTS = (
    *("", "a", "range", "consumer", "\x00", "\n", "\x1b[31m", "\u202e", "\u200b", "x" * 255, "x" * 256),
    *("x" * 5_000, "é" * 128, "..", ".", "Stable", "classic", "[/red]", "%s", "{}", "🦀" * 60),
)
_TOPICS = ("t", "u.v", "x" * 249, "é", "", ".", "a b", "nope")


class Fuzz:
    """Makes messages from a seed, and learns members and generations from answers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.groups = [*(f"fuzz-{number}" for number in range(8)), "", "g" * 255, "é" * 127, "[red]"]
        self.members: dict[str, list[str]] = defaultdict(list)
        self.generations: dict[str, int] = {}

    def message(self, kind: type[Message]) -> Any:
        """A message of a kind; often about a member that exists."""
        message: Any = kind()
        self._fill(message, 0)
        known = [group for group, members in self.members.items() if members]
        if hasattr(message, "group_id") and known and self.random.random() < 0.6:
            self._make_coherent(message, self.random.choice(known))
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
        if isinstance(message, coordinator_pb2.SyncGroupRequest):
            del message.assignments[:]
            for member_id in self.members[group_id][-4:]:
                message.assignments.add(member_id=member_id, assignment=self._bytes())
            message.protocol_type = message.protocol_name = ""
        elif isinstance(message, coordinator_pb2.JoinGroupRequest) and self.random.random() < 0.8:
            self._make_acceptable(message)

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


class Attack:
    """Sends until there were enough messages."""

    def __init__(self, fuzz: Fuzz, wanted: int) -> None:
        self.fuzz = fuzz
        self.wanted = wanted
        self.sent: Counter[str] = Counter()
        self.odd: list[str] = []

    @property
    def over(self) -> bool:
        return self.sent.total() >= self.wanted

    async def unary(self, coordinator: str, discovery: str) -> None:
        chance = self.fuzz.random.random
        async with connection(coordinator) as groups, connection(discovery) as topics:
            while not self.over:
                of_groups = chance() < 0.93
                name = self.fuzz.random.choice(GROUP_CALLS if of_groups else DISCOVERY_CALLS)
                module: ModuleType = coordinator_pb2 if of_groups else discovery_pb2
                channel, path = (groups, GROUPS) if of_groups else (topics, DISCOVERY)
                request = self.fuzz.message(getattr(module, f"{name}Request"))
                body = request.SerializeToString()
                if chance() < 0.15:
                    body = self.fuzz.changed(body)
                self.sent["calls"] += 1
                patience_s = 0.3 if name in PARKED else 20.0
                status, answer, text = await raw(channel, path + name, body, timeout_s=patience_s)
                if status is grpc.StatusCode.OK:
                    self._look(name, request, getattr(module, f"{name}Response").FromString(answer))
                elif status not in FORESEEN and not (
                    status is grpc.StatusCode.DEADLINE_EXCEEDED and name in PARKED
                ):
                    self.odd.append(f"{name}: {status.name} {text[:200]} for {str(request)[:300]}")

    async def stream(self, coordinator: str) -> None:
        pick = self.fuzz.random
        async with connection(coordinator) as channel:
            while not self.over:
                async with Session(channel, keep=True) as session:
                    ends_s = time.monotonic() + pick.uniform(0.2, 6.0)
                    while time.monotonic() < ends_s and not self.over and not session.ended:
                        self._frames(session)
                        await asyncio.sleep(pick.choice((0.005, 0.02)))
                        await session.until_answered(session.asked - 2_000, patience_s=2)
                        for reply in session.answers.values():
                            kind = reply.WhichOneof("response")
                            if kind != "refused":
                                self._look(f"frame {kind}", None, getattr(reply, kind or ""))
                        session.answers.clear()
                    if "foresee" in session.ended:
                        self.odd.append(f"stream: {session.ended}")

    def _frames(self, session: Session) -> None:
        pick = self.fuzz.random
        for _ in range(pick.choice((1, 5, 50))):
            self.sent["frames"] += 1
            if pick.random() < 0.85:
                kind = pick.choice(list(FRAMES))
                session.call(kind, [self.fuzz.message(getattr(coordinator_pb2, f"{FRAMES[kind]}Request"))])
            elif pick.random() < 0.7:
                session.send(session_pb2.ClientFrame(attach=self.fuzz.message(session_pb2.Attach)))
            else:
                session.send(session_pb2.ClientFrame(detach=self.fuzz.message(session_pb2.Detach)))

    def _look(self, name: str, request: Any, answer: Any) -> None:
        if request is not None:
            self.fuzz.learn(request, answer)
        foreseen = getattr(answer, "error_message", "") == STATIC_WITH_A_NEW_ID
        if "UNKNOWN_SERVER_ERROR" in str(answer) and not foreseen:
            self.odd.append(f"{name}: {str(answer)[:300]} for {str(request)[:300]}")


async def main() -> None:
    seed, wanted = (int(word) for word in (*sys.argv[1:], *("1", "20000")[len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory(prefix="muster-abuse-") as folder:
        async with Lab(Path(folder) / "mine", SETTINGS, with_worker=True) as lab:
            attack = Attack(Fuzz(seed), wanted)
            addresses = [coordinator.address for coordinator in lab.cluster.coordinators]
            began_s = time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                for number in range(UNARY_CALLERS):
                    tasks.create_task(attack.unary(addresses[number % 2], lab.cluster.servers))
                for number in range(STREAMS):
                    tasks.create_task(attack.stream(addresses[number % 2]))
            window = lab.window(began_s, time.monotonic())
            report(f"seed {seed}: {dict(attack.sent)}; W's longest gap {window.gap_s:.2f} s")
            trouble = [*attack.odd, *lab.log_lines(*TROUBLE), *lab.cluster.ended()]
            for line in trouble[:20]:
                print(f"  {line[:1_000]}")
            verify = await asyncio.create_subprocess_exec(
                str(Path(sys.executable).with_name("muster")), "verify", lab.cluster.redis_url
            )
            if await verify.wait():
                raise Broken("the log is not in order")
            if trouble:
                raise Broken(f"{len(trouble)} times something was not foreseen: {trouble[0][:300]}")


if __name__ == "__main__":
    run(main, limit_s=3_600)
