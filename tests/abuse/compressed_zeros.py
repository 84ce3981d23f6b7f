"""Calls of some hundred kilobytes that are hundreds of megabytes of zeros when they are unpacked.

Must hold: each is refused with the limit, and nothing of it takes the coordinator's memory.
"""

import grpc
from abuse.bad_requests import unknown_field
from abuse.caller import GROUPS, connection
from abuse.lab import Target, begins, stage
from kit.programs import Broken

SIZES_MB = (8, 64, 256)
EACH = 3


async def attack(target: Target) -> str:
    begins()
    told = []
    async with connection(target.owner) as channel:
        call = channel.unary_unary(
            GROUPS + "Heartbeat", request_serializer=lambda sent: sent, response_deserializer=lambda got: got
        )
        for size_mb in SIZES_MB:
            body = unknown_field(size_mb << 20)
            for _ in range(EACH):
                try:
                    await call(body, timeout=60, compression=grpc.Compression.Gzip)
                except grpc.aio.AioRpcError as error:
                    refused = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT)
                    if error.code() not in refused:
                        raise Broken(
                            f"{size_mb} MiB of zeros: {error.code().name} {error.details()}"
                        ) from error
                else:
                    raise Broken(f"{size_mb} MiB of zeros were taken")
            told.append(f"{size_mb} MiB")
    return f"{EACH} times each refused: {', '.join(told)}"


if __name__ == "__main__":
    stage(attack, coordinator_mb=250)
