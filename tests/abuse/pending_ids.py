"""A stranger has a thousand member ids made in W's group, for sessions of half an hour, and uses none.

Must hold: an honest newcomer gets an id and joins, as if nobody had asked before.
"""

from abuse.caller import connection, groups_stub, join_among, name_of
from abuse.innocent import TOPIC
from abuse.lab import GROUP, Target, begins, stage
from kit.programs import Broken
from muster_protos.muster.v1 import common_pb2

ASKED = 1_100
LONGEST_MS = 1_800_000


async def attack(target: Target) -> str:
    begins()
    async with connection(target.owner) as channel:
        stub = groups_stub(channel)
        request = await join_among(stub, GROUP, TOPIC, session_timeout_ms=LONGEST_MS)
        codes: dict[str, int] = {}
        for number in range(ASKED):
            request.request_id = str(number)
            code = name_of((await stub.JoinGroup(request, timeout=20)).error_code)
            codes[code] = codes.get(code, 0) + 1
        newcomer = await join_among(stub, GROUP, TOPIC, client_id="honest", session_timeout_ms=10_000)
        honest = (await stub.JoinGroup(newcomer, timeout=20)).error_code
    if honest != common_pb2.ERROR_CODE_MEMBER_ID_REQUIRED:
        raise Broken(f"a stranger got {codes}, and then an honest newcomer {name_of(honest)}")
    return f"a stranger got {codes}, and then an honest newcomer its id"


if __name__ == "__main__":
    stage(attack, protocol="classic")
