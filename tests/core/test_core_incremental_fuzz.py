"""Random lives of an incremental group: what it serves is what its log says, and nobody is left out.

`./x fuzz --target incremental_lives` plays more.
"""

import pytest
from kit.lives.cuts import small_cuts
from kit.lives.incremental_fuzz import life


@pytest.mark.slow
@pytest.mark.parametrize("cut", [None, 1], ids=["at-once", "cut-small"])
@pytest.mark.parametrize("first", range(0, 9, 3))
def test_what_is_served_is_what_the_log_says_and_everything_is_shared_out(
    first: int, cut: int | None
) -> None:
    with small_cuts(cut):
        assert sum(life(seed).generations for seed in range(first, first + 3)) > 20
