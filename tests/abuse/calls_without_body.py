"""25,000 calls that send their headers and nothing else.

Must hold: they end with the longest deadline that the server allows, W goes on, and health answers
throughout, so that nothing restarts the process.
"""

import asyncio
import time

import grpc
from abuse.caller import GROUPS, HEALTH, connection, raw
from abuse.http2 import Connection
from abuse.lab import Target, begins, stage
from grpc_health.v1 import health_pb2
from kit.programs import Broken

NUMBER = 25_000
PER_CONNECTION = 5_000
HEARTBEAT = GROUPS + "Heartbeat"
DEADLINE_MS = 3_000
PATIENCE_S = 60.0


async def healthy(target: Target) -> None:
    """Raises `Broken` unless the process says that it is alive and ready."""
    async with connection(target.owner) as channel:
        for service in ("alive", ""):
            body = health_pb2.HealthCheckRequest(service=service).SerializeToString()
            status, _, text = await raw(channel, HEALTH + "Check", body, timeout_s=10)
            if status is not grpc.StatusCode.OK:
                raise Broken(f"health {service!r} answered {status.name}: {text}")


async def attack(target: Target) -> str:
    begins()
    began_s = time.monotonic()
    connections: list[Connection] = []
    ended = checks = 0
    try:
        for _ in range(NUMBER // PER_CONNECTION):
            connections.append(Connection(target.owner))
            for number in range(PER_CONNECTION):
                connections[-1].open(HEARTBEAT, None)
                if number % 200 == 0:
                    connections[-1].poll()
                    await asyncio.sleep(0)
            await healthy(target)
            checks += 1
        opened_s = time.monotonic() - began_s
        while ended < NUMBER and time.monotonic() - began_s < PATIENCE_S:
            for made in connections:
                made.poll(0.01)
            # A caller that is too slow to answer pings loses all its calls at once. One above a quota of its
            # connection is refused by a reset alone, without headers.
            ended = sum(PER_CONNECTION if made.dead else len(made.ended) for made in connections)
            if int(time.monotonic() - began_s) > checks:
                await healthy(target)
                checks += 1
    finally:
        for made in connections:
            made.close()
    if ended < NUMBER:
        raise Broken(f"{NUMBER - ended:,} of {NUMBER:,} calls without a body are open after {PATIENCE_S:g} s")
    took_s = time.monotonic() - began_s
    return f"opened in {opened_s:.1f} s, all ended after {took_s:.1f} s, {checks} checks of health"


if __name__ == "__main__":
    stage(attack, settings={"MUSTER_SERVER_MAX_DEADLINE_MS": str(DEADLINE_MS)})
