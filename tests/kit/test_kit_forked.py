"""Forks of our programs are processes like those that are started."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from importlib import import_module
from pathlib import Path

import pytest
from kit import forked
from kit.clusters import forked_servers
from kit.clusters.linked_cluster import inside
from kit.waiting import killed, until
from muster_server.child_process import Launched

pytestmark = pytest.mark.cluster

SERVER = [sys.executable, "-m", "muster_server"]


@pytest.fixture
async def started(tmp_path: Path) -> AsyncIterator[list[Launched]]:
    processes: list[Launched] = []
    yield processes
    for process in processes:
        await ended(process, signal.SIGKILL)


async def ended(process: Launched, number: signal.Signals) -> int:
    """Its exit code after a signal."""
    process.send_signal(number)
    await until(lambda: process.poll() is not None, "it ends")
    return process.poll() or 0


def launch(folder: Path, environment: Mapping[str, str]) -> Launched:
    """A server that does not end by itself; its output is in `log`, its data in `data`."""
    with (folder / "log").open("ab") as output:
        return forked_servers.launch(
            [*SERVER, "--roles", "metadata", "--data", "data", "--ready-file", "ready"],
            output, {**os.environ, "MUSTER_METADATA_LISTEN": "127.0.0.1:0", **environment}, folder,
        )  # fmt: skip


def test_what_is_to_be_imported_is_there() -> None:
    for name in forked.IMPORTED:
        import_module(name)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_who_forks_has_one_thread_so_no_lock_is_held_for_ever_in_a_fork() -> None:
    program = """
import os, sys
print(len(os.listdir(f"/proc/{os.getppid()}/task")), "grpc.aio" in sys.modules)
"""
    assert forked.run([sys.executable, "-c", program]).stdout == "1 True\n"


def test_a_command_has_its_arguments_settings_outputs_and_exit_code() -> None:
    shown = forked.run([*SERVER, "config", "--json"], {**os.environ, "MUSTER_GROUP_MAX_SIZE": "7"})
    rows = {row["name"]: row["value"] for row in json.loads(shown.stdout)}
    assert (shown.returncode, shown.stderr, rows["MUSTER_GROUP_MAX_SIZE"]) == (0, "", "7")
    wrong = forked.run(["muster", "nodes", "nothing"])
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "nothing" in wrong.stderr


def test_a_command_that_does_not_end_is_killed(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run([*SERVER, "--roles", "metadata", "--data", str(tmp_path)], timeout=0.1)


async def test_a_server_has_a_session_and_a_folder_and_ends_by_signals(
    tmp_path: Path, started: list[Launched]
) -> None:
    for number, code in ((signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)):
        (tmp_path / "ready").unlink(missing_ok=True)
        process = launch(tmp_path, {})
        started.append(process)
        assert isinstance(process, forked.Forked)
        await until((tmp_path / "ready").exists)
        assert os.getsid(process.pid) == process.pid
        assert process.poll() is None
        assert '"ready"' in (tmp_path / "log").read_text()
        assert await ended(process, number) == code


@pytest.mark.parametrize(
    ("environment", "is_forked"),
    [
        ({}, True),
        (inside(LINKED_ROUTES="127.0.0.1:1=2"), True),
        (inside(SKEWED_CLOCK_MS="9"), False),
        ({"PYTHONPATH": "/nowhere"}, False),
        ({"PYTHONHASHSEED": "1"}, False),
    ],
)
async def test_only_a_real_start_takes_what_python_reads_at_its_start(
    environment: dict[str, str], is_forked: bool, tmp_path: Path, started: list[Launched]
) -> None:
    started.append(launch(tmp_path, environment))
    assert isinstance(started[0], forked.Forked) == is_forked


def test_a_program_of_another_version_is_a_fork_of_a_process_that_imported_that_one(tmp_path: Path) -> None:
    (tmp_path / "muster.py").write_text("VERSION = 'another one'")
    program = ["-c", "import sys; print('muster' in sys.modules); import muster; print(muster.VERSION)"]
    forked.prepare_version(str(tmp_path), ["muster"])
    output = tmp_path / "output"
    with output.open("wb") as file:
        process = forked.fork(program, {**os.environ, "PYTHONPATH": str(tmp_path)}, file, file)
        assert process.wait(60) == 0, output.read_text()
    assert output.read_text().split("\n", 1) == ["True", "another one\n"]
    usual = forked.run([sys.executable, "-c", "import muster; print(hasattr(muster, 'VERSION'))"])
    assert usual.stdout == "False\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
async def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from kit.test_kit_forked import launch\n"
        "print(launch(Path(sys.argv[1]), {}).pid, flush=True); sys.stdin.read()"
    )
    tests = str(Path(__file__).parents[1])
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(tmp_path),
        env={**os.environ, "PYTHONPATH": tests}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert parent.stdout is not None
    async with asyncio.timeout(60):
        pid = int(await parent.stdout.readline())
    await until((tmp_path / "ready").exists)
    await killed(parent)

    def runs() -> bool:
        try:
            return "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1]
        except FileNotFoundError:
            return False

    await until(lambda: not runs())


async def test_what_a_started_program_says_is_read_while_it_runs() -> None:
    program = 'import sys; print("a", flush=True); sys.stderr.write("b\\n"); sys.exit(3)'
    process = await forked.started([sys.executable, "-c", program], {**os.environ, "COLUMNS": "1"})
    assert await process.stdout.readline() == b"a\n"
    assert await process.communicate() == (b"", b"b\n")
    assert (process.returncode, await process.wait()) == (3, 3)


async def test_a_started_program_gets_signals_and_is_killed() -> None:
    program = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""
    process = await forked.started([sys.executable, "-c", program])
    assert await process.stdout.readline() == b"ready\n"
    process.terminate()
    assert await process.stdout.readline() == b"asked\n"
    await killed(process)
    assert process.returncode == -signal.SIGKILL
    process.kill()
