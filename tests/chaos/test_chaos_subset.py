"""A short part of `./x chaos` in the gate: real processes, few members, the faults that cover most.

`muster verify` and the checkers judge it. That the audit with Spark agrees with what clients were answered
under faults is shown by `audit/test_audit_simulated.py`.
"""

from pathlib import Path

import pytest
from chaos.all_scenarios import SCENARIOS
from chaos.arena import Size
from chaos.run import run

pytestmark = pytest.mark.cluster

GATE = ("4", "5", "12", "15", "A")
PATIENCE = 10
"""Far beyond any load (see `run`)."""


@pytest.mark.timeout(900)
async def test_a_short_part_of_chaos(tmp_path: Path) -> None:
    told: list[str] = []
    scenarios = [SCENARIOS[number] for number in GATE]
    size = Size(groups=6, members=4, processes=2)
    result = await run(scenarios, tmp_path, size, told.append, patience=PATIENCE, audited=False)
    assert result.good, "\n".join([*told, result.totals()])
    assert len(result.verdicts) == len(GATE)
    assert result.acknowledged > 100
