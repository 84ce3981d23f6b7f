"""A program of `./x` that is interrupted leaves nothing, whatever it has started."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kit.waiting import until

pytestmark = pytest.mark.cluster

BUSY = """
import os, signal, subprocess, sys, tempfile, time
from pathlib import Path

signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
folder = Path(tempfile.mkdtemp())
asleep = ["sleep", "600"]
leaves_one = f"import subprocess as s; print(s.Popen({asleep}, stdout=s.DEVNULL, start_new_session=True).pid)"
orphan = subprocess.check_output([sys.executable, "-c", leaves_one], text=True)
mine = subprocess.Popen(asleep, start_new_session=True)
os.kill(mine.pid, signal.SIGSTOP)
told = Path(sys.argv[1])
told.with_suffix(".new").write_text(f"{os.getpid()} {mine.pid} {orphan.strip()} {folder}")
told.with_suffix(".new").rename(told)
time.sleep(600)
"""


@contextmanager
def started(temporary: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A program of `./x`, whose temporary folder is made there."""
    temporary.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "kit.interruptible", *arguments],
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process cannot know what is below it")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupt_leaves_one_line_and_neither_processes_nor_folders(
    tmp_path: Path, number: signal.Signals
) -> None:
    told = tmp_path / "told"
    with started(tmp_path / "temporary", "-c", BUSY, str(told)) as process:
        await until(told.exists, "it has started everything")
        *pids, folder = told.read_text().split()
        assert Path(folder).is_relative_to(tmp_path / "temporary")
        assert all(lives(int(pid)) for pid in pids)
        os.killpg(process.pid, number)  # as a terminal does
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (128 + number, "", "x: interrupted\n")
    assert not any(lives(int(pid)) for pid in pids)
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize(("code", "stays"), [(0, False), (3, True)])
def test_a_program_that_ends_by_itself_leaves_its_folder_only_where_it_failed(
    tmp_path: Path, code: int, stays: bool
) -> None:
    program = f"import sys, tempfile; print(tempfile.mkdtemp(), sys.argv[1:]); sys.exit({code})"
    with started(tmp_path / "temporary", "-c", program, "--small") as process:
        output, errors = process.communicate(timeout=60)
    folder, _, rest = output.partition(" ")
    assert (process.returncode, rest) == (code, "['--small']\n")
    assert Path(folder).exists() == stays
    assert errors == (f"x: what it left is in {Path(folder).parent}\n" if stays else "")
    assert len(list((tmp_path / "temporary").iterdir())) == stays


def test_one_that_a_signal_ends_has_the_code_of_a_shell(tmp_path: Path) -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with started(tmp_path / "temporary", "-c", program) as process:
        assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 128 + signal.SIGKILL
