"""`./x` on a machine whose Python is a stand-in: what it makes, and when it makes it again."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kit import forked

ROOT = Path(__file__).parents[2]
READ = (
    "x",
    "requirements.lock",
    "protos/pyproject.toml",
    "assignors/pyproject.toml",
    "clients/python/pyproject.toml",
    "services/pyproject.toml",
    "services/audit/pyproject.toml",
    "requirements-audit.lock",
)
PYTHON = """#!/bin/sh
[ "$1 $2" = "-m venv" ] && mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/uv"
[ "$2" = pytest ] && echo "tests ran"
case " $* " in *" --require-hashes -r $UNAVAILABLE "*) exit 2 ;; esac
exit 0
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with what `./x` reads, and a Python beside it whose tools do nothing."""
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    clone = tmp_path / "clone"
    for name in READ:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    return clone


def x(clone: Path, *arguments: str, unavailable: str = "nothing") -> subprocess.CompletedProcess[str]:
    """Runs `./x` where the packages of the file `unavailable` cannot be installed."""
    return subprocess.run(
        [str(clone / "x"), *arguments],
        env={**os.environ, "MUSTER_PYTHON": str(clone.parent / "python"), "UNAVAILABLE": unavailable},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_environment_is_made_again_where_its_folder_was_moved(clone: Path) -> None:
    assert "making the environment" in x(clone, "setup").stderr
    assert x(clone, "setup").stderr == ""
    moved = clone.rename(clone.with_name("moved"))
    assert "making the environment" in x(moved, "setup").stderr


@pytest.mark.parametrize("unavailable", ["requirements.lock", "requirements-audit.lock"])
def test_nothing_runs_in_an_environment_that_could_not_be_made_whole(clone: Path, unavailable: str) -> None:
    for _ in range(2):
        failed = x(clone, "test", "tests/audit", unavailable=unavailable)
        assert failed.returncode == 1
        assert "not everything could be installed" in failed.stderr
        assert failed.stdout == ""
    mended = x(clone, "test", "tests/audit")
    assert mended.returncode == 0
    assert mended.stdout == "tests ran\n"


@pytest.mark.cluster
@pytest.mark.parametrize("tool", ["audit_corpus", "data", "metrics", "protos", "settings"])
def test_what_writes_files_refuses_an_option_that_it_does_not_know(tool: str) -> None:
    done = forked.run([sys.executable, str(ROOT / "tools" / f"{tool}.py"), "--chek"])
    assert done.returncode == 2
    assert "unrecognized arguments: --chek" in done.stderr
    assert done.stdout == ""


@pytest.mark.cluster
def test_a_demo_without_text_says_so_and_leaves_no_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "muster_server.demo", "--input", str(tmp_path / "none")]
    done = forked.run(command, {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "500"})
    assert done.returncode == 2
    assert "there is no such folder" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []
