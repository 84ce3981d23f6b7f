import os
import platform
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from muster_runtime.memory import keep_freed, limit_bytes
from muster_runtime.rpc.server import RpcServer, ServerSettings

MIB = 1 << 20

needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or tuple(map(int, platform.libc_ver()[1].split("."))) < (2, 36),
    reason="needs glibc 2.36 or newer: other C libraries give freed memory back as they like",
)

FAULTS = """
import asyncio, resource, sys
from muster_runtime import memory, process

async def main(stop):
    taken = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        bytes(range(256)) * (40 << 12)
        taken.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    print(memory.keep_freed(), min(taken[1:]))

process.run(main)
"""


@needs_glibc
@pytest.mark.skipif((limit_bytes() or 0) < 512 * MIB, reason="needs 512 MiB of memory")
@pytest.mark.cluster
def test_a_large_message_takes_the_memory_of_the_one_before() -> None:
    """LIM-47: each page that the system gives must be cleared first, while everybody waits."""
    said = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True).stdout
    can_be_told, faults = said.split()
    assert can_be_told == "True"
    assert int(faults) < 40 * MIB / 4_096 / 10


def group(folder: Path, name: str, limit: str) -> None:
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "memory.max").write_text(limit)


def test_the_lowest_limit_above_a_process_counts(tmp_path: Path) -> None:
    group(tmp_path, "", "max\n")
    group(tmp_path, "pod", f"{300 * MIB}\n")
    group(tmp_path, "pod/container", f"{700 * MIB}\n")
    own = tmp_path / "own"
    own.write_text("0::/pod/container\n")
    assert limit_bytes(tmp_path, own) == 300 * MIB


def test_limits_of_the_first_version_count(tmp_path: Path) -> None:
    folder = tmp_path / "memory" / "docker" / "x"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{200 * MIB}\n")
    own = tmp_path / "own"
    own.write_text("3:cpu,cpuacct:/docker/x\n2:memory:/docker/x\n0::/\n")
    assert limit_bytes(tmp_path, own) == 200 * MIB


def test_a_container_sees_its_own_limit_at_the_top(tmp_path: Path) -> None:
    group(tmp_path, "", f"{100 * MIB}\n")
    assert limit_bytes(tmp_path, tmp_path / "none") == 100 * MIB


def test_without_a_limit_the_machine_is_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert limit_bytes(tmp_path, tmp_path / "none") == memory_bytes


@needs_glibc
def test_a_process_can_be_told_twice() -> None:
    assert keep_freed()
    assert keep_freed()


@pytest.mark.cluster
async def test_an_answer_is_encoded_once() -> None:
    """LIM-48: to ask a message for its size encodes it, which for megabytes others notice."""
    encoded: list[int] = []

    async def answer(_: bytes, __: Any) -> int:
        return 1_000

    def encode(size: int) -> bytes:
        encoded.append(size)
        return b"x" * size

    def add(_: object, server: Any) -> None:
        handler = grpc.unary_unary_rpc_method_handler(answer, Request, encode)
        server.add_registered_method_handlers("some.Service", {"Ask": handler})

    server = RpcServer(ServerSettings())
    server.add(add, object())
    address = f"127.0.0.1:{await server.start('127.0.0.1:0')}"
    async with grpc.aio.insecure_channel(address) as channel:
        ask: Any = channel.unary_unary("/some.Service/Ask")
        assert await ask(b"", timeout=60) == b"x" * 1_000
    await server.stop(0)
    assert encoded == [1_000]


class Request(bytes):
    """A request that says how large it is, as messages do."""

    def ByteSize(self) -> int:
        return len(self)
