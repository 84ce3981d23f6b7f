"""A coordinator may open few more files, and a stranger takes all of them with idle connections.

Must hold: W, which is connected, goes on; whoever is new is served again once the stranger is gone.
"""

import asyncio
import os
import resource
import socket
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import grpc
from abuse.caller import GROUPS, connection, raw
from abuse.lab import GAP_S, Lab, Target
from kit.programs import Broken, report, run
from kit.waiting import until
from muster_protos.muster.v1 import coordinator_pb2

MORE = 20
TAKEN = 200
HELD_S = 6.0
BACK_S = 20.0
HANDSHAKE_MS = 3_600_000 // 6
"""Longer than the program, so that the stranger's connections stay."""


async def main() -> None:
    settings = {"MUSTER_SERVER_HANDSHAKE_TIMEOUT_MS": str(HANDSHAKE_MS)}
    with tempfile.TemporaryDirectory(prefix="muster-abuse-") as folder:
        async with Lab(Path(folder) / "mine", settings, with_worker=True) as lab:
            target = await Target.at(lab.cluster.servers)
            limit = bound(lab, target.owner)
            await asyncio.sleep(HELD_S / 2)
            began_s = time.monotonic()
            taken = await asyncio.to_thread(take, target.owner)
            try:
                await asyncio.sleep(HELD_S)
                meanwhile = await newcomer(target.owner)
            finally:
                for one in taken:
                    one.close()
            during = lab.window(began_s, time.monotonic())

            async def served() -> bool:
                return await newcomer(target.owner) is grpc.StatusCode.OK

            try:
                await until(served, "a newcomer to be served", BACK_S)
            except AssertionError as error:
                raise Broken(f"nobody new is served after the stranger is gone: {error}") from error
            report(
                f"{limit} files, {len(taken)} idle connections: a newcomer got {meanwhile.name}, then OK; "
                f"W's longest gap {during.gap_s:.2f} s"
            )
            if meanwhile is grpc.StatusCode.OK:
                raise RuntimeError("the files were not used up, so nothing was shown")
            if during.events or during.gap_s > 2 * GAP_S:
                raise Broken(f"W was disturbed: {during}")
            if ended := lab.cluster.ended():
                raise Broken(f"ended: {', '.join(ended)}")


def bound(lab: Lab, owner: str) -> int:
    """Lets a coordinator open only some more files; gives how many it may have."""
    process = next(one for one in lab.cluster.coordinators if one.address == owner).process
    assert process.pid is not None
    limit = len(os.listdir(f"/proc/{process.pid}/fd")) + MORE
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (limit, limit))
    return limit


def take(address: str) -> list[socket.socket]:
    """Opens connections until no more are taken."""
    host, _, port = address.rpartition(":")
    taken: list[socket.socket] = []
    with suppress(OSError):
        taken.extend(socket.create_connection((host, int(port)), 2) for _ in range(TAKEN))
    return taken


async def newcomer(address: str) -> grpc.StatusCode:
    """What a new client's heartbeat gets."""
    async with connection(address) as channel:
        body = coordinator_pb2.HeartbeatRequest(group_id="new", member_id="m").SerializeToString()
        status, _, _ = await raw(channel, GROUPS + "Heartbeat", body, timeout_s=3)
    return status


if __name__ == "__main__":
    run(main)
