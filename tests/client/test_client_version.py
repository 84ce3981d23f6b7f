"""What a client says it is, and what it costs to say that."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from muster._version import client_version

PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:]
import muster
from muster._version import client_version
muster.Member  # imports all that it needs
print(client_version(), "importlib.metadata" in sys.modules)
"""


def said(*folders: Path | str) -> str:
    command = [sys.executable, "-c", PROGRAM, *map(str, folders)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_it_is_the_installed_one() -> None:
    assert client_version() == f"muster-python/{version('muster-client')}"


def test_nothing_is_imported_for_it_that_a_first_join_would_wait_for(tmp_path: Path) -> None:
    """Importing and asking `importlib.metadata` takes 17 of 40 ms of CPU of the first join of a process."""
    (tmp_path / "other_thing-1.0.dist-info").mkdir()
    (tmp_path / "muster_client_more-1.0.dist-info").mkdir()
    assert said(tmp_path / "no such folder", __file__, tmp_path) == f"{client_version()} False"


@pytest.mark.parametrize("first", [True, False])
def test_the_first_one_on_the_path_counts(tmp_path: Path, *, first: bool) -> None:
    """As for whoever imports it: a folder of another version may come before what is installed."""
    (tmp_path / "muster_client-9.8.7.dist-info").mkdir()
    assert said(*([tmp_path] if first else [])).split()[0] == (
        "muster-python/9.8.7" if first else client_version()
    )
