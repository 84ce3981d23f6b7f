"""A member that keeps 20,000 partitions asks for its assignment again and again, fifty times at once.

Must hold: small calls that have large answers take turns, and W does not notice.
"""

from abuse.caller import asked_at_once, connection, groups_stub, keeping
from abuse.lab import Target, begins, stage
from kit.programs import Broken

TOPIC = "t" * 249
PARTITIONS = 20_000
AT_ONCE = 50
ASKED_S = 10.0
PATIENCE_S = 0.5


async def attack(target: Target) -> str:
    (group_id,) = await target.groups(1, "again")
    async with connection(target.owner) as channel:
        stub = groups_stub(channel)
        sync, kept = await keeping(stub, group_id, TOPIC, PARTITIONS)
        if kept != PARTITIONS:
            raise Broken(f"{kept:,} tokens are kept, not {PARTITIONS:,}")
        begins()
        said = await asked_at_once(
            stub.SyncGroup, sync, at_once=AT_ONCE, for_s=ASKED_S, patience_s=PATIENCE_S
        )
    return f"a member of {PARTITIONS:,} kept partitions asked again: {dict(said)}"


if __name__ == "__main__":
    stage(attack)
