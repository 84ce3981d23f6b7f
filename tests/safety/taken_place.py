"""A new process takes a static member's place and commits under the numbers of the one before (GRP-32).

A real core in virtual time. Control: what the *same* process sends again under its number is a retry, and is
written once.
"""

from kit.lives.virtual_shard import VirtualMember, VirtualShard, fetched
from kit.programs import Broken, report, run

BEFORE, AFTER = 5, 9


async def main() -> None:
    """Three commits with the same number, and what is stored after each of them."""
    shard = VirtualShard()
    first = process(shard)
    first.sync({first.member_id: b"x"}).synced()
    stored = [outcome(shard, first, BEFORE), outcome(shard, first, BEFORE)]
    if (written := shard.kinds().count("offset_committed")) != 1:
        raise Broken(f"a commit and its retry were written {written} times")
    second = process(shard)
    stored.append(outcome(shard, second, AFTER))
    told = f"acknowledged {BEFORE}, its retry, and {AFTER} of the next process; stored {stored}"
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
