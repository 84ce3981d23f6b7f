"""Random lives of groups that are converted: one owner at a time, and nobody is left out (INC-70 to INC-77).

`./x fuzz --target incremental_lives` plays more.
"""

import pytest
from kit.lives.conversion_fuzz import life


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 9, 3))
def test_a_group_is_converted_in_any_phase_and_everything_is_shared_out(first: int) -> None:
    assert sum(life(seed).conversions for seed in range(first, first + 3)) > 2
