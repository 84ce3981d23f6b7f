"""`muster-audit` as a process: what its command line says where something is wrong."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from muster_audit.command import session

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


def test_what_a_full_disk_has_no_room_for_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def write() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(typer.Exit) as end, session("export", "", None, first=write, writes=tmp_path):
        pass
    assert end.value.exit_code == 2
    assert capsys.readouterr().err == f"muster-audit: {tmp_path} cannot be written: No space left on device\n"
