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
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
from abuse.caller import GROUPS, connection, raw
from abuse.lab import Lab
from abuse.session import Session
from google.protobuf.message_factory import GetMessageClass
from kit.lives.drawn_messages import DrawnMessages
from kit.programs import Broken, report, run
from muster_core.protocol.membership.joins import STATIC_WITH_A_NEW_ID
from muster_protos.muster.v1 import coordinator_pb2, discovery_pb2, session_pb2

_OF_GROUPS = coordinator_pb2.DESCRIPTOR.services_by_name["GroupCoordinatorService"]
_OF_TOPICS = discovery_pb2.DESCRIPTOR.services_by_name["CoordinatorDiscoveryService"]
DISCOVERY = "/muster.v1.CoordinatorDiscoveryService/"
CALLS = {
    method.name: (GetMessageClass(method.input_type), GetMessageClass(method.output_type))
    for service in (_OF_GROUPS, _OF_TOPICS)
    for method in service.methods
    if not method.server_streaming
}
"""The kinds of request and answer of each unary call."""
GROUP_CALLS = tuple(name for name in CALLS if name in _OF_GROUPS.methods_by_name)
DISCOVERY_CALLS = tuple(name for name in CALLS if name in _OF_TOPICS.methods_by_name)
FRAMES = {
    "join_group": "JoinGroup",
    "sync_group": "SyncGroup",
    "heartbeat": "Heartbeat",
    "leave_group": "LeaveGroup",
    "offset_commit": "OffsetCommit",
    "offset_fetch": "OffsetFetch",
}
PARKED = ("JoinGroup", "SyncGroup", "ConsumerGroupHeartbeat")
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


class Attack:
    """Sends until there were enough messages."""

    def __init__(self, fuzz: DrawnMessages, wanted: int) -> None:
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
                channel, path = (groups, GROUPS) if of_groups else (topics, DISCOVERY)
                asks, says = CALLS[name]
                request = self.fuzz.message(asks)
                body = request.SerializeToString()
                if chance() < 0.15:
                    body = self.fuzz.changed(body)
                self.sent["calls"] += 1
                patience_s = 0.3 if name in PARKED else 20.0
                status, answer, text = await raw(channel, path + name, body, timeout_s=patience_s)
                if status is grpc.StatusCode.OK:
                    self._look(name, request, says.FromString(answer))
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
            attack = Attack(DrawnMessages(random.Random(seed)), wanted)
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
