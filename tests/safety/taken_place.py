"""A new process takes a static member's place and commits under the numbers of the one before (GRP-32).

A real core in virtual time. Control: the same number from the *same* process is a retry, and changes nothing.
"""

from kit.programs import Broken, report, run
from kit.virtual_shard import VirtualMember, VirtualShard, fetched

BEFORE, RETRIED, AFTER = 5, 7, 9


async def main() -> None:
    """Three commits with the same number, and what is stored after each of them."""
    shard = VirtualShard()
    first = process(shard)
    first.sync({first.member_id: b"x"}).synced()
    stored = [outcome(shard, first, BEFORE), outcome(shard, first, RETRIED)]
    second = process(shard)
    stored.append(outcome(shard, second, AFTER))
    told = f"acknowledged {BEFORE}, its retry {RETRIED}, and {AFTER} of the next process; stored {stored}"
    if stored != [BEFORE, BEFORE, AFTER]:
        raise Broken(told)
    report(told)


def process(shard: VirtualShard) -> VirtualMember:
    """A process of the static member that joined."""
    member = VirtualMember(shard, "static", instance="i").join()
    while member.is_parked:
        shard.advance(100)
    member.joined()
    return member


def outcome(shard: VirtualShard, member: VirtualMember, offset: int) -> int:
    """What is stored after a commit, which must be acknowledged."""
    if code := member.commit(offset, seq=1):
        raise Broken(f"the commit of {offset} was answered {code}")
    return fetched(shard)


if __name__ == "__main__":
    run(main)
