"""`muster-audit` as a process: what its command line says where something is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

AUDIT = [sys.executable, "-m", "muster_audit"]
SECRET = "redis://user:secret@a:1"


@pytest.mark.slow
def test_a_password_on_a_wrong_command_line_is_not_repeated() -> None:
    done = subprocess.run([*AUDIT, SECRET], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "redis://…@" in done.stderr
    assert "secret" not in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is a disk without room")
def test_output_that_cannot_be_written_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*AUDIT, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "muster-audit: it cannot be written: No space left on device\n"
