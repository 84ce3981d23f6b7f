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
)
PYTHON = """#!/bin/sh
[ "$1 $2" = "-m venv" ] && mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/uv"
exit 0
"""


def setup(folder: Path, python: Path) -> str:
    """Runs `./x setup`; gives what it told."""
    done = subprocess.run(
        [str(folder / "x"), "setup"],
        env={**os.environ, "MUSTER_PYTHON": str(python)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stderr


def test_the_environment_is_made_again_where_its_folder_was_moved(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    first, second = tmp_path / "first", tmp_path / "second"
    for name in READ:
        (first / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, first / name)
    assert "making the environment" in setup(first, python)
    assert setup(first, python) == ""
    first.rename(second)
    assert "making the environment" in setup(second, python)


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
