"""1,900 members whose names are in characters of four bytes: no record is too large (LIM-01).

A real core in virtual time. All requests hold the limits of the API; what a group may have is counted in
bytes, so members are refused before the record of a generation is too large. Control: as many members with as
many characters of one byte all join.
"""

from kit.lives.virtual_shard import VirtualShard
from kit.programs import Broken, report, run
from muster_coordinator.validation import violations
from muster_core.config import GroupConfig
from muster_core.record_bounds import RECORD_MAX_BYTES
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

MEMBERS = 1_900
MOST_BYTES = 7 << 20
"""The most that `MUSTER_GROUP_MAX_GROUP_BYTES` may be."""
PROTOCOLS = 16
CHARACTERS = 63
SMILEY = 0x1F600
ALLOWED = {common_pb2.ERROR_CODE_MEMBER_ID_REQUIRED, common_pb2.ERROR_CODE_GROUP_MAX_SIZE_REACHED}


async def main() -> None:
    """Both groups, and the records of their first generations."""
    narrow = generation(ord("a"))
    if len(narrow.generation_started.members) != MEMBERS:
        raise Broken(f"{MEMBERS} ordinary members: {len(narrow.generation_started.members)} are in the group")
    wide = generation(SMILEY)
    if wide.ByteSize() > RECORD_MAX_BYTES:
        raise Broken(f"the record of a generation has {wide.ByteSize():,} bytes")
    report(
        f"{len(wide.generation_started.members)} of {MEMBERS} members, a record of {wide.ByteSize():,} bytes"
    )


def generation(first_character: int) -> records_pb2.Record:
    """The first generation of a group whose members use characters from this one on."""
    shard = VirtualShard(GroupConfig(max_group_bytes=MOST_BYTES))
    shard.auto_ack = False
    for number in range(MEMBERS):
        request = join(number, first_character)
        if broken := violations(request):
            raise Broken(f"the request is not within the limits: {broken}")
        answer = shard.ask(request)
        assert isinstance(answer, coordinator_pb2.JoinGroupResponse)
        if answer.error_code not in ALLOWED:
            raise Broken(f"member {number} was answered {answer.error_code}")
        request.member_id = answer.member_id
        shard.send(request)
    try:
        while not shard.waiting:
            shard.advance(1_000)
    except AssertionError as error:  # what the virtual log refuses
        raise Broken(f"the record of a generation: {error}") from error
    return shard.waiting[0].records[0]


def join(number: int, first_character: int) -> coordinator_pb2.JoinGroupRequest:
    """A join with names as long as they may be."""
    names = [chr(first_character + index) * CHARACTERS for index in range(PROTOCOLS)]
    return coordinator_pb2.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        protocol_type="x",
        client_id=chr(first_character) * CHARACTERS,
        request_id=str(number),
        protocols=[coordinator_pb2.GroupProtocol(name=name, metadata=b"m") for name in names],
    )


if __name__ == "__main__":
    run(main)
