"""The disk of the log's node is full for some seconds; then it has room again.

Must hold: as when it is out of memory. The disk is a file system in memory that only this program sees
(`unshare`; Linux).
"""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

from abuse.full_log import judge
from abuse.lab import Lab
from kit.programs import BROKEN, HELD, Broken, run
from kit.waiting import until
from redis.asyncio import Redis
from redis.exceptions import ResponseError

INSIDE = "inside"
DISK_MB = 64
BLOCK = bytes(4_096)


async def main() -> None:
    if sys.argv[1:] == [INSIDE]:
        await inside()
        return
    command = ("unshare", "--map-root-user", "--mount", sys.executable, "-m", "abuse.full_disk", INSIDE)
    process = await asyncio.create_subprocess_exec(*command)
    code = await process.wait()
    if code == BROKEN:
        raise Broken("the disk of a node was full")
    if code != HELD:
        raise RuntimeError(f"the program without the disks of others ended with {code}")


async def inside() -> None:
    """The program, where nobody else sees what it mounts."""
    with tempfile.TemporaryDirectory(prefix="muster-abuse-") as folder:
        lab = Lab(Path(folder) / "mine", {}, with_worker=True)
        assert lab.cluster.nodes is not None
        disk = lab.cluster.nodes[0].folder
        with mounted(disk):
            async with lab:
                await judge(lab, full(disk, lab.cluster.nodes[0].url))


@contextmanager
def mounted(folder: Path) -> Iterator[None]:
    """A folder is a disk of its own."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


@asynccontextmanager
async def full(disk: Path, url: str) -> AsyncIterator[None]:
    """All room is taken meanwhile, and the node has noticed: it writes to the disk after it has answered."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(BLOCK)
        except OSError:
            pass
    try:
        async with Redis.from_url(url) as node:
            await until(partial(refuses, node), "a node that refuses")
        yield
    finally:
        ballast.unlink()


async def refuses(node: Redis) -> bool:
    """Whether the node takes nothing any more."""
    try:
        await node.set("ballast", b"x")
    except ResponseError:
        return True
    return False


if __name__ == "__main__":
    run(main)
