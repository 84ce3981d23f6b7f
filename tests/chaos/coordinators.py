"""Scenarios about coordinators."""

import asyncio
import itertools
import os
import random
import signal
import uuid
from typing import Any

import grpc
from chaos.arena import Arena, NotHit
from chaos.prober import TOPIC
from chaos.raw import REBALANCING, RawMember, Wire, all_joined, assignments_for, stable
from chaos.scenario import KILLED_MS, SILENT_MS, scenario
from kit.links import TO_SOURCE
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

PREPARING = coordinator_pb2.GROUP_STATE_PREPARING_REBALANCE
COMPLETING = coordinator_pb2.GROUP_STATE_COMPLETING_REBALANCE
EMPTY = coordinator_pb2.GROUP_STATE_EMPTY
_numbers = itertools.count(1)


def new_group(label: str) -> str:
    """A group id that was never used."""
    return f"{label}-{next(_numbers)}"


async def raw_group(arena: Arena, wire: Wire, group: str, count: int) -> list[RawMember]:
    """Members that know their coordinator and have not joined."""
    found = await wire.find(group)
    members = [wire.member(group, f"m{number}") for number in range(count)]
    for member in members:
        await member.go_to(found)
    return members


def leader_of(members: list[RawMember]) -> RawMember:
    """The one that assigns."""
    return next(member for member in members if member.leader)


async def explain(arena: Arena, group: str) -> None:
    """Notes what the group went through."""
    found = await arena.client.describe_group(group)
    arena.note(f"{group}: {coordinator_pb2.GroupState.Name(found.state)}, generation {found.generation}")
    for row in await arena.client.group_history(group, 5):
        arena.note(f"{group}: {str(row)[:400]}".replace("\n", " "))


async def in_state(arena: Arena, group: str, state: "coordinator_pb2.GroupState.ValueType") -> bool:
    """Whether a group is in a state, as its coordinator says."""
    return bool((await arena.client.describe_group(group)).state == state)


async def failed(task: "asyncio.Task[Any]") -> bool:
    """Whether a call ended without an answer."""
    try:
        await task
    except grpc.aio.AioRpcError:
        return True
    return False


@scenario("1", "kill -9 of the owner, groups Stable and Empty", KILLED_MS)
async def kill_owner(arena: Arena) -> str:
    async with arena.wire() as wire:
        group = new_group("empty")
        (member,) = await raw_group(arena, wire, group, 1)
        await stable([member], "only")
        arena.expect(await member.commit(TOPIC, 17) == 0, "the commit before was accepted")
        await member.leave()
    # The leave is answered when its record is stored; the generation without members is one more record.
    await arena.until(lambda: in_state(arena, group, EMPTY), "the group is Empty")
    before = await arena.client.describe_group(group)
    owner = await arena.owner(group)
    shares = await arena.shares()
    await arena.kill(owner.name)
    await arena.all_commit()
    after = await arena.client.describe_group(group)
    arena.expect((after.state, after.generation) == (EMPTY, before.generation), "it is still Empty")
    found = await arena.client.committed(group)
    arena.expect([at.offset for at in found.values()] == [17], "its progress is there")
    arena.expect((await arena.owner(group)).name != owner.name, "somebody else serves it")
    return f"{owner.name} served {shares[owner.name]} shards, one with an Empty group"


@scenario("2", "kill -9 while some have joined (PreparingRebalance)", KILLED_MS, tries=3)
async def kill_preparing(arena: Arena) -> str:
    async with arena.wire() as wire:
        group = new_group("preparing")
        members = await raw_group(arena, wire, group, 4)
        generation = await stable(members[:3], "before")
        joining = asyncio.create_task(members[3].join())

        async def prepares() -> bool:
            return joining.done() or await in_state(arena, group, PREPARING)

        await arena.until(prepares, "the group prepares a rebalance")
        if joining.done():  # the shard moved at this moment, or all came back before they were looked at
            raise NotHit(f"the join was answered already, with error {joining.result()}")
        await arena.kill((await arena.owner(group)).name)
        arena.expect(await failed(joining), "the parked join has no answer")
        after = await stable(members, "after")
        numbers = await arena.logs.generations(group)
        # The successor does not know the fourth one's id: the three may be back before it has another.
        arena.expect(after in (generation + 1, generation + 2), f"one or two new generations, not {numbers}")
        arena.expect(numbers == sorted(set(numbers)), f"generations in the log: {numbers}")
    return f"parked in PreparingRebalance of generation {generation}; then {after}"


@scenario("3", "kill -9 after JoinGroup answers, before the leader's SyncGroup", KILLED_MS, tries=3)
async def kill_completing(arena: Arena) -> str:
    async with arena.wire() as wire:
        group = new_group("completing")
        members = await raw_group(arena, wire, group, 4)
        await stable(members, "before")
        generation = await all_joined(members)
        if not await in_state(arena, group, COMPLETING):
            raise NotHit("the group does not wait for its leader")
        await arena.kill((await arena.owner(group)).name)
        leader = leader_of(members)
        answer = await leader.resync(assignments_for(leader.members, "after"))
        arena.expect(answer.error_code in (0, REBALANCING), f"the sync was answered {answer.error_code}")
        after = await stable(members, "next")
        arena.expect(after > generation, "the number was not used again")
        numbers = await arena.logs.generations(group)
        arena.expect(numbers == sorted(set(numbers)), f"generations in the log: {numbers}")
    return f"generation {generation} was answered and not synced; its sync got {answer.error_code}"


@scenario("4", "kill -9 after the SyncGroup append, before any answer", KILLED_MS, tries=3)
async def kill_between_append_and_answer(arena: Arena) -> str:
    async with arena.wire() as wire:
        group = new_group("appended")
        members = await raw_group(arena, wire, group, 4)
        await stable(members, "before")
        generation = await all_joined(members)
        leader, owner = leader_of(members), await arena.owner(group)
        shard = arena.logs.shard(group)
        before = await arena.logs.end(1, shard)
        given = assignments_for(leader.members, "appended")
        await arena.cut(owner.name, arena.metadata, [TO_SOURCE])
        syncs = [asyncio.create_task(member.sync(given if member.leader else None)) for member in members]

        async def stored() -> bool:
            holders = await arena.logs.holders(shard, before, "assignment_committed", group, generation)
            return holders >= arena.logs.majority

        try:
            await arena.until(stored, "a majority has the assignment", 1.5)
            hit = not any(task.done() for task in syncs)
        finally:
            await arena.kill(owner.name)
            await arena.mend(owner.name, arena.metadata)
            unanswered = [await failed(task) for task in syncs]
        if not hit or not all(unanswered):
            raise NotHit("somebody was answered before the kill")
        answers = await asyncio.gather(*(m.resync(given if m.leader else None) for m in members))
        if any(answer.error_code for answer in answers):
            await explain(arena, group)
        for member, answer in zip(members, answers, strict=True):
            arena.expect(
                answer.error_code == 0 and answer.assignment == given[member.member_id],
                f"{member.name} repeats SyncGroup and gets {answer.error_code} {answer.error_message} "
                f"{answer.assignment!r}",
            )
    return f"generation {generation} stood on a majority, 4 of 4 members had no answer"


@scenario("5", "kill -9 after half of the members are answered", KILLED_MS, tries=3)
async def kill_half_answered(arena: Arena) -> str:
    async with arena.wire() as wire:
        group = new_group("half")
        members = await raw_group(arena, wire, group, 4)
        await stable(members, "before")
        generation = await all_joined(members)
        leader = leader_of(members)
        given = assignments_for(leader.members, "half")
        first = [leader, next(member for member in members if member is not leader)]
        rest = [member for member in members if member not in first]
        answers = await asyncio.gather(*(m.sync(given if m is leader else None) for m in first))
        if any(answer.error_code for answer in answers):
            raise NotHit(f"the first half was answered {[answer.error_code for answer in answers]}")
        await arena.kill((await arena.owner(group)).name)
        for member in [*rest, *first]:
            answer = await member.resync()
            if answer.error_code:
                await explain(arena, group)
            arena.expect(
                answer.error_code == 0 and answer.assignment == given[member.member_id],
                f"{member.name} gets {answer.error_code} {answer.error_message} {answer.assignment!r}",
            )
    return f"generation {generation}: 2 of 4 members had their answer"


@scenario("6", "kill -9 of the successor during its claims and loads", 2 * KILLED_MS, tries=4)
async def kill_loading(arena: Arena) -> str:
    first = await arena.busiest()
    shards = [number for number, (node, _) in (await arena.epochs()).items() if node == first.name]
    before = {shard: await arena.logs.end(1, shard) for shard in shards}
    await arena.kill(first.name)
    caught: dict[int, tuple[str, int]] = {}

    async def somebody_claims() -> bool:
        for shard in shards:
            for _, record in await arena.logs.records(1, shard, before[shard]):
                if record.WhichOneof("kind") == "claim" and record.claim.node_id != first.name:
                    caught[shard] = (record.claim.node_id, 0)
                    return True
        return False

    await arena.until(somebody_claims, "a successor claims", 10)
    successor = next(iter(caught.values()))[0]
    arena.pause(successor)
    claimed, claiming = set(), set()
    for shard in shards:
        records = await arena.logs.records(1, shard, before[shard])
        epochs = [
            place.epoch
            for place, record in records
            if record.WhichOneof("kind") == "claim" and record.claim.node_id == successor
        ]
        if epochs:
            claimed.add((shard, max(epochs)))
        elif await arena.logs.promised(1, shard) > before[shard].epoch:
            claiming.add(shard)
    loaded = {(line["shard"], line["epoch"]) for line in arena.said(successor, "shard_loaded")}
    await arena.kill(successor)
    await arena.all_commit()
    if not claimed - loaded:
        raise NotHit("everything that was claimed had been loaded")
    unloaded, promised = len(claimed - loaded), len(claiming)
    return f"{successor}: {len(claimed)} claims, {unloaded} of them not loaded, {promised} promises alone"


@scenario("7", "SIGSTOP of the owner for 10 s", SILENT_MS)
async def stop_owner(arena: Arena) -> str:
    owner = await arena.busiest()
    before = await arena.epochs()
    mine = [shard for shard, (node, _) in before.items() if node == owner.name]
    arena.pause(owner.name)
    await asyncio.sleep(10)
    after = await arena.epochs()
    arena.expect(
        all(after[shard][1] > before[shard][1] and after[shard][0] != owner.name for shard in mine),
        "all its shards have a later owner",
    )
    arena.resume(owner.name)
    await asyncio.sleep(1)
    fenced = len(arena.said(owner.name, "shard_fenced"))
    await arena.all_commit()
    return f"{len(mine)} shards went on in a later epoch; {fenced} were fenced when it woke"


@scenario("8", "SIGSTOP of the owner for 0.8 s", KILLED_MS)
async def stop_owner_briefly(arena: Arena) -> str:
    await arena.balanced()
    owner = await arena.busiest()
    before = await arena.epochs()
    arena.pause(owner.name)
    await asyncio.sleep(0.8)
    arena.resume(owner.name)
    await arena.all_commit()
    after = await arena.epochs()
    moved = [
        shard for shard, (node, _) in before.items() if node == owner.name and after[shard] != before[shard]
    ]
    arena.expect(not moved, f"no fail-over, but the shards {moved} moved")
    arena.expect(arena.seen().lost == 0, "no member lost anything")
    return "no epoch changed"


@scenario("9", "the owner's event loop is busy for 1 s", KILLED_MS, tries=5)
async def busy_loop(arena: Arena) -> str:
    # After a stop the members commit in step, once a second: maybe just before it is over.
    await asyncio.sleep(random.random())
    owner = await arena.busiest()
    before = await arena.epochs()
    arena.measured_from_now()
    arena.note(f"SIGUSR1 {owner.name}: it computes for a second")
    owner.process.signal(signal.SIGUSR1)
    await arena.all_commit()
    took_ms = arena.seen().recovery_ms
    arena.expect(owner.process.running, "it lives")
    if took_ms < 300:
        raise NotHit(f"no commit took longer than {took_ms:.0f} ms: the loop was not held up")
    after = await arena.epochs()
    kept = sum(after[shard] == row for shard, row in before.items() if row[0] == owner.name)
    return f"the longest commit took {took_ms:.0f} ms; it kept {kept} shards"


@scenario("10", "all coordinators killed, started again after 30 s", KILLED_MS)
async def kill_all(arena: Arena) -> str:
    names = [process.name for process in arena.cluster.coordinators]
    await arena.kill(*names)
    await asyncio.sleep(30)
    lost = arena.seen().lost
    await arena.start(*names)
    await arena.settled()
    arena.fault_ended()
    await arena.all_commit()
    return f"{lost} times a member gave its partitions up by itself and got the same back"


@scenario("11", "two claimants take one shard at the same time", SILENT_MS)
async def two_claimants(arena: Arena) -> str:
    group = arena.load.groups[0]
    shard, epoch = arena.logs.shard(group), await arena.epoch(group)
    channels = [grpc.aio.insecure_channel(process.address) for process in arena.cluster.metadata]

    async def step(stream: Any, **kind: Any) -> metadata_pb2.LogResult:
        call = metadata_pb2.LogCall(call_id=1, shard=shard, **kind)
        await stream.write(metadata_pb2.LogRequest(calls=[call]))
        result: metadata_pb2.LogResult = (await stream.read()).results[0]
        return result

    nonces = [os.urandom(16) for _ in channels]
    try:
        streams = [metadata_pb2_grpc.MetadataServiceStub(channel).Log() for channel in channels]
        arena.note(f"two strangers claim shard {shard} above epoch {epoch}")
        claims = [
            metadata_pb2.ClaimStep(
                node_id=f"stranger-{index}", session=str(uuid.uuid4()), nonce=nonce, above_epoch=epoch
            )
            for index, nonce in enumerate(nonces)
        ]
        results = await asyncio.gather(
            *(step(stream, claim=claim) for stream, claim in zip(streams, claims, strict=True))
        )
        checks = await asyncio.gather(
            *(
                step(stream, check=metadata_pb2.CheckStep(epoch=result.epoch, claim_nonce=nonce))
                for stream, result, nonce in zip(streams, results, nonces, strict=True)
            )
        )
    finally:
        for channel in channels:
            await channel.close()
    holding = sum(check.outcome == metadata_pb2.LOG_OUTCOME_OK for check in checks)
    arena.expect(holding <= 1, "at most one of them holds the log then")
    outcomes = [metadata_pb2.LogOutcome.Name(result.outcome) for result in results]
    claimed = [
        (place, record.claim.node_id)
        for place, record in await arena.logs.records(1, shard)
        if record.WhichOneof("kind") == "claim" and place.epoch > epoch
    ]
    epochs = [place.epoch for place, _ in claimed]
    arena.expect(len(set(epochs)) == len(epochs), f"one claim for an epoch, not {claimed}")
    arena.expect("LOG_OUTCOME_OK" in outcomes, f"one of them won: {outcomes}")
    await arena.all_commit()
    told = ", ".join(outcome.removeprefix("LOG_OUTCOME_") for outcome in outcomes)
    return f"claims {told}; {holding} held the log then; epoch {await arena.epoch(group)} serves"


@scenario("12", "SIGTERM of all coordinators, one after the other", KILLED_MS)
async def rolling_restart(arena: Arena) -> str:
    arena.fault_ended()
    for process in arena.cluster.coordinators:
        arena.note(f"SIGTERM {process.name}")
        code = await process.terminate()
        arena.expect(code == 0, f"{process.name} ended with {code}")
        await process.start()
        await arena.settled()
    await arena.all_commit()
    unknown = arena.seen().unknown
    arena.expect(unknown == 0, f"{unknown} commits failed")
    return "every commit was acknowledged in the end"


@scenario("13", "a group too large for memory; the system kills the coordinator", KILLED_MS)
async def too_large(arena: Arena) -> str:
    async with arena.wire() as wire:
        group = new_group("large")
        found = await wire.find(group)
        owner = await arena.owner(group)
        before_kb = _resident_kb(owner.process.pid)
        members = [wire.member(group, f"m{number}", metadata=b"x" * 60_000) for number in range(250)]
        await members[0].go_to(found)
        for member in members[1:]:
            member.share(members[0])
        calls = [asyncio.create_task(member.join(20)) for member in members]
        done, _ = await asyncio.wait(calls, timeout=25)
        codes = [task.result() for task in done if task.exception() is None]
        refused = codes.count(common_pb2.ERROR_CODE_GROUP_MAX_SIZE_REACHED)
        arena.expect(refused > 0, f"the limit of a group's bytes refuses members: {set(codes)}")
        arena.expect(owner.process.running, "the coordinator lives")
        grown_mb = (_resident_kb(owner.process.pid) - before_kb) // 1024
        arena.expect(grown_mb < 400, f"it grew by {grown_mb} MB")
        await arena.kill(owner.name)
        for task in calls:
            task.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await arena.all_commit()
        await arena.start(owner.name)
        await asyncio.sleep(3)
        arena.expect(owner.process.running, "it does not crash again")
    return f"{refused} of 250 members refused, {grown_mb} MB more"


def _resident_kb(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
