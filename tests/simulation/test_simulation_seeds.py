"""A few seeds, and that a seed is always the same run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

TESTS = Path(__file__).parents[1]
MINUTES = "1.5"


def simulate(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    """Runs the command as a user does."""
    path = os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))
    return subprocess.run(
        [sys.executable, "-m", "simulation", "--minutes", MINUTES, *arguments],
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.timeout(700)
def test_a_few_seeds_find_nothing() -> None:
    ran = simulate("--seeds", "4", "--first", "100")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "simulate: 4 seeds of 1.5 virtual minutes, 0 failed" in ran.stdout.splitlines()[-1]


@pytest.mark.timeout(700)
def test_a_seed_is_the_same_run_in_every_process() -> None:
    """The trace holds every message of everybody, so one hash stands for the whole run."""
    hashes = []
    for hash_seed in ("1", "2"):
        ran = simulate("--seed", "7", hash_seed=hash_seed)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        hashes.append(ran.stdout.split("trace ")[1].split(",")[0])
    assert hashes[0] == hashes[1]


def test_a_trace_of_many_seeds_is_refused() -> None:
    ran = simulate("--seeds", "2", "--trace", "trace.txt")
    assert ran.returncode == 2
    assert "--trace needs --seed" in ran.stderr
