"""Static members of a large group stay away, while its leader joins again and again with something new.

Each call begins a generation that names all of them; when the leader stops all are removed. Must hold: W does
not notice.
"""

import asyncio
import time
from collections import Counter

from abuse.caller import connection, groups_stub, join, name_of
from abuse.lab import Target, begins, stage
from abuse.session import Session
from kit.programs import Broken
from muster_protos.muster.v1 import coordinator_pb2

MEMBERS = 4_900
AT_A_TIME = 100
AT_ONCE = 50
FORMING = {"session_timeout_ms": 1_800_000, "rebalance_timeout_ms": 60_000}
AWAY = FORMING | {"rebalance_timeout_ms": 300}
FOR_S = 15.0


async def attack(target: Target) -> str:
    (group,) = await target.groups(1, "absent-statics")
    async with connection(target.owner) as channel:
        async with connection(target.owner) as other, Session(other, keep=True) as session:
            leader = await form(session, group)
        stub, numbers = groups_stub(channel), iter(range(MEMBERS))

        async def take() -> None:
            for number in numbers:  # other processes, which need no rebalance, and let no others wait long
                await stub.JoinGroup(join(group, group_instance_id=f"i{number}", **AWAY), timeout=30)

        await asyncio.gather(*(take() for _ in range(AT_ONCE)))
        begins()
        ends_s, said = time.monotonic() + FOR_S, Counter[str]()
        request = join(group, group_instance_id=f"i{leader}", **AWAY)
        while time.monotonic() < ends_s:
            request.protocols[0].metadata = str(said.total()).encode()
            answer = await stub.JoinGroup(request, timeout=30)
            said[name_of(answer.error_code)] += 1
            request.member_id = answer.member_id
        await asyncio.sleep(1)  # those who have not synced are removed
    if set(said) != {"NONE"} or len(answer.members) != MEMBERS:
        raise Broken(f"{dict(said)}, the last generation with {len(answer.members)} members")
    return f"{said.total()} generations of {MEMBERS} members who stay away"


async def form(session: Session, group: str) -> int:
    """Forms a group; returns which of its members leads."""
    requests = [join(group, group_instance_id=f"i{number}", **FORMING) for number in range(MEMBERS)]
    for first in range(0, MEMBERS, AT_A_TIME):
        session.call("join_group", requests[first : first + AT_A_TIME])
    await session.until_answered(MEMBERS)
    answers = [session.answers[number + 1].join_group for number in range(MEMBERS)]
    syncs = [
        coordinator_pb2.SyncGroupRequest(
            group_id=group,
            member_id=answer.member_id,
            group_instance_id=f"i{number}",
            generation=answer.generation,
        )
        for number, answer in enumerate(answers)
    ]
    for first in range(0, MEMBERS, AT_A_TIME):
        session.call("sync_group", syncs[first : first + AT_A_TIME])
    await session.until_answered(2 * MEMBERS)
    if set(session.replies) != {"join_group NONE", "sync_group NONE"}:
        raise Broken(f"{session.ended} {dict(session.replies)}")
    return next(number for number, answer in enumerate(answers) if answer.members)


if __name__ == "__main__":
    stage(attack)
