"""Random damages of real logs of each `Life`: none is missed, and nothing crashes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kit.damage.stage import Stage, damages
from kit.logs.real_logs import Life, real_logs

pytestmark = [pytest.mark.cluster, pytest.mark.long]

SEED, COUNT = 1, 25
"""Of each life; `./x audit-damage` does as many as one likes, of other seeds."""


@pytest.fixture(params=[*Life])
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    async with real_logs(tmp_path, request.param) as stage:
        yield stage


async def test_every_damage_is_found_or_harmless_by_a_rule(stage: Stage) -> None:
    assert stage.clean()
    tally = stage.run(SEED, COUNT)
    assert not tally.missed, tally
    assert not tally.crashed, tally
    assert tally.caught > COUNT // 4
    assert stage.clean()


def test_the_damages_differ() -> None:
    assert len(set(damages())) >= 25
