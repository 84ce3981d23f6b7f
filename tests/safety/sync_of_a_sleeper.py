"""A SyncGroup must not prolong a life at the client that it does not prolong at the server (SES-19).

A real core in virtual time, and the library's own `Life`. A member that stood still since its join fetches
its assignment half a second before its session ends; from the removal on it must not own anything.
"""

from kit.lives.virtual_shard import VirtualMember, VirtualShard
from kit.programs import Broken, report, run
from muster._standing.life import Life


async def main() -> None:
    """The leader heartbeats; the other one syncs late."""
    shard = VirtualShard()
    members = [VirtualMember(shard, name).join() for name in ("a", "b")]
    while any(member.is_parked for member in members):
        shard.advance(100)
    for member in members:
        member.joined()
    leader, late = members if members[0].members else members[::-1]
    life = Life(late.session_timeout_ms)
    life.restart()
    leader.sync(dict.fromkeys(leader.members, b"x")).synced()
    for _ in range(3):
        shard.advance(3_000)
        leader.heartbeat()
    shard.advance(500)
    late.sync().synced()
    shard.advance(500)
    left = [member.client_id for member in shard.describe().members]
    remaining_ms = life.remaining_ms(shard.now_ms)
    report(
        f"after {late.session_timeout_ms} ms {left} are members; the late one lives on for {remaining_ms} ms"
    )
    if len(left) == 1 and remaining_ms:
        raise Broken(f"a removed member works on for {remaining_ms} ms")


if __name__ == "__main__":
    run(main)
