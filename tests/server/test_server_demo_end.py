"""The demo, told to end before its end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

SECONDS = 60


@pytest.mark.parametrize("background", [False, True], ids=["", "background"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["sigint", "sigterm"])
def test_a_demo_that_is_told_to_end_cleans_up(
    tmp_path: Path, number: signal.Signals, background: bool
) -> None:
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_text("some words in a line\n" * 1_000)
    program = [sys.executable, "-m", "muster_server.demo", "--fast", "--input", str(text)]
    if background:
        program = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *program]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "lines of real text" in line:
                break
        process.send_signal(number)
        output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert "stopped" in output
    assert f"data and logs are in {tmp_path}" in output
    assert not any(str(tmp_path) in command for command in commands())


def commands() -> Iterator[str]:
    """The command lines of this machine's processes, where the system tells them."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            yield entry.read_bytes().decode(errors="replace")
