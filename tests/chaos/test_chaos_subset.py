"""A short part of `./x chaos` in the gate: real processes, few members, the faults that cover most."""

from pathlib import Path

import chaos.coordinators
import chaos.nodes  # noqa: F401 - they add themselves to the list
import pytest
from chaos.arena import Size
from chaos.run import run
from chaos.scenario import SCENARIOS

pytestmark = pytest.mark.cluster

GATE = ("4", "5", "12", "15", "A")
PATIENCE = 10
"""Far beyond any load (see `run`)."""


@pytest.mark.timeout(1800)
async def test_a_short_part_of_chaos(tmp_path: Path) -> None:
    told: list[str] = []
    scenarios = [SCENARIOS[number] for number in GATE]
    result = await run(
        scenarios, tmp_path, Size(groups=6, members=4, processes=2), told.append, patience=PATIENCE
    )
    assert result.good, "\n".join([*told, result.totals()])
    assert len(result.verdicts) == len(GATE)
    assert result.acknowledged > 100
