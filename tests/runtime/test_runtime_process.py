import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytestmark = pytest.mark.cluster

PRELUDE = """
import asyncio, sys
from muster_runtime.process import run
from muster_runtime.settings import SettingsError
"""


@contextmanager
def process(code: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.mark.parametrize(
    ("body", "code", "error"),
    [
        ("return None", 0, ""),
        ("return 7", 7, ""),
        (
            "raise SettingsError(['MUSTER_X: wrong'])",
            2,
            "error: the settings are wrong:\n  MUSTER_X: wrong\n",
        ),
    ],
)
def test_exit_codes(body: str, code: int, error: str) -> None:
    with process(f"async def main(stop):\n    {body}\nsys.exit(run(main))") as child:
        _, stderr = child.communicate(timeout=30)
    assert (child.returncode, stderr) == (code, error)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
def test_what_native_code_ends_says_who_called_it(number: signal.Signals) -> None:
    body = f"async def main(stop):\n    import signal\n    signal.raise_signal({int(number)})\n"
    with process(body + "sys.exit(run(main))") as child:
        _, stderr = child.communicate(timeout=30)
    assert child.returncode == -number
    assert "Fatal Python error" in stderr
    assert " in main" in stderr


def test_an_unforeseen_error_ends_with_1() -> None:
    with process("async def main(stop):\n    raise KeyError('x')\nsys.exit(run(main))") as child:
        child.communicate(timeout=30)
    assert child.returncode == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_to_stop(number: signal.Signals) -> None:
    code = (
        "async def main(stop):\n    print('up', flush=True)\n    await stop.wait()\n    return 5\n"
        "sys.exit(run(main))"
    )
    with process(code) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        child.send_signal(number)
        assert child.wait(timeout=30) == 5


def test_a_second_signal_forces_the_end() -> None:
    code = (
        "async def main(stop):\n    print('up', flush=True)\n    await stop.wait()\n"
        "    print('stopping', flush=True)\n    await asyncio.sleep(1000)\nsys.exit(run(main))"
    )
    with process(code) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        child.send_signal(signal.SIGTERM)
        while (line := child.stdout.readline()) != "stopping\n":
            assert line
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=30) == 128 + signal.SIGTERM


NO_MEMORY = {
    "callback": "asyncio.get_running_loop().call_soon(none)",
    "caught": "try: none()\n    except Exception: log.exception('step_failed')",
    "core": "raise MemoryError",
    "destructor": "type('Lost', (), {'__del__': none})()",
    "library": "grpc._common.serialize('a message', none)",
    "serializer": "grpc._common.serialize('a message', encode)",
    "thread": "threading.Thread(target=none).start()",
}


@pytest.mark.parametrize("way", NO_MEMORY)
def test_a_process_that_gets_no_memory_ends_whoever_meets_it(way: str) -> None:
    """What goes on after that may hold what others wait for: a lease, with a log that is never written."""
    code = f"""
import threading, grpc, structlog
from google.protobuf.message import EncodeError
from muster_runtime.logs import LogSettings, configure
log = structlog.get_logger()
configure(LogSettings(format="json"))

def none(*_):
    raise MemoryError

def encode(_):
    raise EncodeError("Failed to serialize proto")

async def main(stop):
    {NO_MEMORY[way]}
    await stop.wait()

sys.exit(run(main))
"""
    with process(code) as child:
        _, stderr = child.communicate(timeout=60)
    assert child.returncode == 1
    line = json.loads(stderr.splitlines()[-1])
    assert (line["event"], line["alarm"]) == ("memory_exhausted", True)
