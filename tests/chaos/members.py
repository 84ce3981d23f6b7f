"""Scenarios about members."""

import asyncio
import itertools
import signal
import time
from collections import Counter
from typing import Any

import grpc
from chaos.arena import Arena, NotHit
from chaos.coordinators import leader_of, new_group
from chaos.history import with_ends
from chaos.kinds import CLASSIC, INCREMENTAL
from chaos.load import end
from chaos.raw import REBALANCING, RawMember, all_joined, assignments_for
from chaos.scenario import KILLED_MS, NODE_MS, scenario
from muster._session.frames import call_frame, messages, response_of
from muster_protos.muster.v1 import (
    common_pb2,
    coordinator_pb2,
    coordinator_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
)
from muster_runtime.rpc.channels import CHANNEL_OPTIONS

FENCED_INSTANCE = common_pb2.ERROR_CODE_FENCED_INSTANCE_ID
CROWD, STREAMS = 5_000, 10


@scenario("38", "a client dies between JoinGroup and SyncGroup, also the leader", KILLED_MS)
async def client_dies_joining(arena: Arena) -> str:
    told = []
    async with arena.wire() as wire:
        for who in ("a follower", "the leader"):
            group = new_group("dying")
            found = await wire.find(group)
            members = [
                wire.member(group, f"m{number}", session_ms=6_000, rebalance_ms=5_000) for number in range(3)
            ]
            for member in members:
                await member.go_to(found)
            generation = await all_joined(members)
            leader = leader_of(members)
            dead = leader if who == "the leader" else next(m for m in members if m is not leader)
            left = [member for member in members if member is not dead]
            arena.note(f"{who} of {group} is not heard of again")
            after = await _outlive(arena, left, generation, leader)
            arena.expect(after == generation + 1, f"one new generation, not {after} after {generation}")
            now_leading = leader_of(left)
            arena.expect(dead.member_id not in now_leading.members, "the dead one is no member of it")
            told.append(f"{who}: generation {generation} to {after}")
    return "; ".join(told)


async def _outlive(arena: Arena, left: list[RawMember], generation: int, leader: RawMember) -> int:
    """The others sync and heartbeat until they are told to rejoin; gives their next generation."""

    async def live(member: RawMember) -> None:
        given = assignments_for(leader.members, "first") if member is leader else None
        answer = await member.resync(given)
        arena.expect(answer.error_code in (0, REBALANCING), f"the sync was answered {answer.error_code}")
        deadline = time.monotonic() + 30
        while answer.error_code == 0 and await member.heartbeat() == 0:
            arena.expect(time.monotonic() < deadline, "the dead member is expired")
            await asyncio.sleep(0.3)
        code = await member.rejoin()
        arena.expect(code == 0, f"the rejoin was answered {code}")

    await asyncio.gather(*(live(member) for member in left))
    numbers = {member.generation for member in left}
    arena.expect(len(numbers) == 1, f"the others are in one generation, not {numbers}")
    return numbers.pop()


class Crowd:
    """Very many members of one group, a few session streams for all."""

    def __init__(self, address: str, group: str) -> None:
        self._group = group
        self._channels = [
            grpc.aio.insecure_channel(
                address, options=[*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
            )
            for _ in range(STREAMS)
        ]
        self.ids: list[str] = []
        self.refused: Counter[str] = Counter()

    async def close(self) -> None:
        await asyncio.gather(*(channel.close() for channel in self._channels))

    async def join(self, count: int) -> None:
        """All of them join, each in two steps as KIP-394 has it; who is refused for now asks again."""
        await asyncio.gather(*(self._join_some(channel, count // STREAMS) for channel in self._channels))

    async def _join_some(self, channel: Any, count: int) -> None:
        stream: Any = session_pb2_grpc.GroupSessionServiceStub(channel).Session()
        hello = session_pb2.ClientFrame(hello=session_pb2.Hello(client_id="crowd", beat_interval_ms=20_000))
        numbers = itertools.count(1)
        due = [call_frame(next(numbers), self._request("")) for _ in range(count)]
        await stream.write(session_pb2.SessionRequest(frames=[hello]))
        joined = 0
        while joined < count:
            for message in messages(iter(due)):
                await stream.write(message)
            due = []
            message = await stream.read()
            assert message is not grpc.aio.EOF, "the stream ended early"
            for frame in message.frames:
                assert frame.WhichOneof("kind") == "reply", frame
                answer: Any = response_of(frame.reply)
                if answer.error_code == 0:
                    joined += 1
                    self.ids.append(answer.member_id)
                elif answer.error_code == common_pb2.ERROR_CODE_MEMBER_ID_REQUIRED:
                    due.append(call_frame(next(numbers), self._request(answer.member_id)))
                else:
                    self.refused[common_pb2.ErrorCode.Name(answer.error_code)] += 1
                    due.append(call_frame(next(numbers), self._request("")))
                    await asyncio.sleep(0.001)
        stream.cancel()

    async def leave(self) -> None:
        """All of them leave, in a few calls."""
        per_call = len(self.ids) // STREAMS

        async def leave_some(channel: Any, ids: list[str]) -> None:
            stub: Any = coordinator_pb2_grpc.GroupCoordinatorServiceStub(channel)
            members = [coordinator_pb2.LeaveGroupRequest.Member(member_id=member_id) for member_id in ids]
            answer = await stub.LeaveGroup(
                coordinator_pb2.LeaveGroupRequest(group_id=self._group, members=members), timeout=60
            )
            assert answer.error_code == 0, answer.error_message

        parts = [self.ids[n * per_call : (n + 1) * per_call] for n in range(STREAMS)]
        await asyncio.gather(*map(leave_some, self._channels, parts))

    def _request(self, member_id: str) -> coordinator_pb2.JoinGroupRequest:
        return coordinator_pb2.JoinGroupRequest(
            group_id=self._group,
            member_id=member_id,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            protocol_type="chaos",
            protocols=[coordinator_pb2.GroupProtocol(name="plain", metadata=b"m")],
        )


@scenario("39", "5,000 members join one group at once, then all leave", KILLED_MS)
async def crowd(arena: Arena) -> str:
    await arena.balanced()
    before = await arena.epochs()
    group = new_group("crowd")
    owner = await arena.owner(group)
    many = Crowd(owner.address, group)
    begin_ns = time.monotonic_ns()
    try:
        await many.join(CROWD)
        joined_s = (time.monotonic_ns() - begin_ns) / 1e9
        arena.note(f"{CROWD} members joined within {joined_s:.1f} s")
        await many.leave()
    finally:
        await many.close()
    arena.note("all left")
    generations = await arena.logs.generations(group)
    arena.expect(len(generations) <= 10, f"few generations, not {len(generations)}")
    moved = [shard for shard, row in (await arena.epochs()).items() if row != before[shard]]
    arena.expect(not moved, f"the leases are kept, but the shards {moved} moved")
    await arena.all_commit()
    took_ms = sorted(
        (end["t"] - begun["t"]) / 1e6
        for begun, end in with_ends(arena.recent)
        if begun["f"] == "heartbeat" and end is not None and begun["t"] >= begin_ns
    )
    p99_ms = took_ms[int(0.99 * (len(took_ms) - 1))]
    return (
        f"joined in {joined_s:.1f} s, {len(generations)} generations, {sum(many.refused.values())} refusals; "
        f"p99 of {len(took_ms)} heartbeats of other groups {p99_ms:.0f} ms"
    )


@scenario("Z", "a process of members stopped until others own its partitions, then woken", NODE_MS, tries=3)
async def zombies(arena: Arena) -> str:
    return await _woken_late(arena, CLASSIC)


@scenario("Zi", "the same in an incremental group", NODE_MS, tries=3)
async def incremental_zombies(arena: Arena) -> str:
    return await _woken_late(arena, INCREMENTAL)


async def _woken_late(arena: Arena, kind: str) -> str:
    group, count = new_group("zombies"), 10
    await arena.client.ensure_topic(group, count)
    names = (f"{group}-stopped", f"{group}-heirs")
    first, second = [
        await arena.load.worker(name, n, 2, count, {group: kind}) for n, name in enumerate(names)
    ]
    try:

        def owned_by_heirs() -> int:
            """How many partitions the heirs listed when each of them last did."""
            arena.follow()
            listed = {
                event["s"]: event["ps"]
                for event in arena.recent
                if event.get("f") == "listed" and event["g"] == group
            }
            return sum(len(listed.get(f"{group}/{number}", ())) for number in range(1, count, 2))

        await arena.until(lambda: owned_by_heirs() == count // 2, "both processes own a half")
        await asyncio.sleep(2)
        arena.note(f"SIGSTOP {names[0]}")
        first.send_signal(signal.SIGSTOP)
        await arena.until(lambda: owned_by_heirs() == count, "the heirs own all", 90)
        await asyncio.sleep(2)
        arena.note(f"SIGCONT {names[0]}")
        woke_ns = time.monotonic_ns()
        first.send_signal(signal.SIGCONT)
        await asyncio.sleep(3)
        arena.follow()
        stale = _listed_before_assigned(
            arena, {f"{group}/{number}" for number in range(0, count, 2)}, woke_ns
        )
        arena.expect(not stale, f"who wakes up lists nothing that others own, but {stale} did")
        refused = [event for event in arena.recent if event.get("f") == "refused" and event["g"] == group]
    finally:
        first.send_signal(signal.SIGCONT)
        await end([first, second])
    if not refused:
        raise NotHit("none of them was between its token and its write when it was stopped")
    return f"{len(refused)} writes of the woken process were refused, and it listed no partition as its own"


def _listed_before_assigned(arena: Arena, slots: set[str], since_ns: int) -> list[str]:
    """Members that listed partitions after a time, before any were assigned to them after it."""
    assigned: set[str] = set()
    listed = []
    for event in arena.recent:
        if event["t"] >= since_ns and event.get("s") in slots:
            if event.get("f") == "assigned":
                assigned.add(event["s"])
            elif event.get("f") == "listed" and event["ps"] and event["s"] not in assigned:
                listed.append(event["s"])
    return listed


@scenario("45", "two static members with one instance id, a fail-over in between", KILLED_MS)
async def same_instance(arena: Arena) -> str:
    async with arena.wire() as wire:
        group = new_group("static")
        found = await wire.find(group)
        first = wire.member(group, "first", instance="i-1")
        second = wire.member(group, "second", instance="i-1")
        for member in (first, second):
            await member.go_to(found)
        arena.expect(await first.rejoin() == 0, "the first one joins")
        await first.resync(assignments_for(first.members, "static"))
        arena.expect(await second.rejoin() == 0, "the second one takes its place")
        generation = second.generation
        codes = [await first.heartbeat(), await second.heartbeat()]
        arena.expect(codes == [FENCED_INSTANCE, 0], f"heartbeats before: {codes}")
        await arena.kill((await arena.owner(group)).name)
        for member in (first, second):
            await member.until_answered(member.heartbeat, int)
        codes = [await first.heartbeat(), await second.heartbeat()]
        arena.expect(codes == [FENCED_INSTANCE, 0], f"heartbeats after: {codes}")
        arena.expect(second.generation == generation, "the generation is the same")
    await arena.all_commit()
    return "FENCED_INSTANCE_ID before and after; the other one lives on in its generation"
