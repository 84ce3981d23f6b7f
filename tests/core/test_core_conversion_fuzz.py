"""Random lives of groups that change their kind: one owner, and nobody is left out (INC-70, INC-150).

`./x fuzz --target incremental_lives` plays more.
"""

import pytest
from kit.lives.conversion_fuzz import life
from kit.lives.cuts import small_cuts


@pytest.mark.slow
@pytest.mark.parametrize("cut", [None, 1], ids=["at-once", "cut-small"])
@pytest.mark.parametrize("first", range(0, 12, 4))
def test_a_group_changes_its_kind_in_any_phase_and_everything_is_shared_out(
    first: int, cut: int | None
) -> None:
    with small_cuts(cut):
        lives = [life(seed) for seed in range(first, first + 4)]
    assert sum(one.conversions for one in lives) > 2
    assert sum(one.reversions for one in lives) > 0
