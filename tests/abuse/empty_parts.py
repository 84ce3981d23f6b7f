"""Messages of four megabytes that are two million empty parts: topics, groups, assignments, frames.

And a hundred at once of fields that nobody knows, fewer than a message may have. Must hold: each is refused
with the limit, or for the quota that the first ones have used up, nobody looks at each part, and W does not
notice.
"""

import asyncio
import time
from collections import Counter

import grpc
from abuse.caller import GROUPS, connection, raw
from abuse.lab import Target, begins, stage
from kit.programs import Broken
from muster_protos.limits import REQUEST_MAX_BYTES
from muster_protos.muster.v1 import coordinator_pb2 as pb

PARTS = {
    "OffsetCommit": pb.OffsetCommitRequest.TOPICS_FIELD_NUMBER,
    "OffsetFetch": pb.OffsetFetchRequest.GROUPS_FIELD_NUMBER,
    "SyncGroup": pb.SyncGroupRequest.ASSIGNMENTS_FIELD_NUMBER,
}
FOR_S = 12.0
PAUSE_S = 0.25
"""So a caller may send as many bytes as it does."""

UNKNOWN_FIELDS = b"\xa0\x06\x01" * 100_000
AT_ONCE = 100
PATIENCE_S = 90
"""They are looked through one after the other."""

REFUSALS = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}


async def attack(target: Target) -> str:
    said: Counter[str] = Counter()
    begins()
    ends_s = time.monotonic() + FOR_S
    await asyncio.gather(
        *(send(target, method, ends_s, said) for method in PARTS),
        *(send_unknown(target, ends_s, said) for _ in range(AT_ONCE)),
    )
    return str(dict(said))


async def send(target: Target, method: str, ends_s: float, said: Counter[str]) -> None:
    """Sends such messages on a connection of its own."""
    part = bytes([PARTS[method] << 3 | 2, 0])
    body = part * (REQUEST_MAX_BYTES // len(part))
    async with connection(target.owner) as channel:
        while time.monotonic() < ends_s:
            status, _, text = await raw(channel, GROUPS + method, body, timeout_s=60)
            if status not in REFUSALS:
                raise Broken(
                    f"{method} with {len(body) // 2:,} empty parts was answered {status.name} {text!r}"
                )
            said[f"{method} {status.name}"] += 1
            await asyncio.sleep(PAUSE_S)


async def send_unknown(target: Target, ends_s: float, said: Counter[str]) -> None:
    """Sends messages that name nothing, on a connection of its own."""
    async with connection(target.owner) as channel:
        while time.monotonic() < ends_s:
            status, _, text = await raw(channel, f"{GROUPS}OffsetFetch", UNKNOWN_FIELDS, timeout_s=PATIENCE_S)
            if status not in REFUSALS:
                raise Broken(f"a fetch of nothing was answered {status.name} {text!r}")
            said[f"unknown {status.name}"] += 1
            await asyncio.sleep(PAUSE_S)


if __name__ == "__main__":
    stage(attack, coordinator_mb=700)
