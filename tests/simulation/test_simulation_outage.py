"""Outages of the log that are shorter than a session, in virtual time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

TESTS = Path(__file__).parents[1]


@pytest.mark.timeout(700)
@pytest.mark.parametrize("seed", ["1", "2"])
def test_an_outage_of_the_log_stops_no_worker(seed: str) -> None:
    path = os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", "")))
    ran = subprocess.run(
        [sys.executable, "-m", "simulation.outage", "--seed", seed, "--outages", "2"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "0 violations" in ran.stdout
