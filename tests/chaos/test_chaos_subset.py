"""A short part of `./x chaos` in the gate: real processes, few members, the faults that cover most.

`muster verify` and the checkers judge it. That the audit with Spark agrees with what clients were answered
under faults is shown by `audit/test_audit_simulated.py`.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from chaos.all_scenarios import SCENARIOS
from chaos.arena import Size
from chaos.run import run

pytestmark = pytest.mark.cluster

GATE = ("4", "5", "12", "A")
LEASE_ENDS = ("15",)
"""Of the gate, what the leases do not outlast."""
PATIENCE = 10
"""Far beyond any load (see `run`)."""


@pytest.mark.timeout(900)
async def test_a_short_part_of_chaos(tmp_path: Path) -> None:
    await judged(tmp_path, GATE, Size(groups=6, members=4, processes=2), 100)


@pytest.mark.brief_lease
@pytest.mark.timeout(900)
async def test_a_fault_that_lasts_longer_than_the_leases(tmp_path: Path) -> None:
    await judged(tmp_path, LEASE_ENDS, Size(groups=3, members=3, processes=1), 10)


async def judged(folder: Path, numbers: Sequence[str], size: Size, acknowledged: int) -> None:
    """Runs scenarios, and fails unless they were good, under so many commits at least."""
    told: list[str] = []
    scenarios = [SCENARIOS[number] for number in numbers]
    result = await run(scenarios, folder, size, told.append, patience=PATIENCE, audited=False)
    assert result.good, "\n".join([*told, result.totals()])
    assert len(result.verdicts) == len(numbers)
    assert result.acknowledged > acknowledged
