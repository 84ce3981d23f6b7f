"""Random lives of an incremental group: what it serves is what its log says, and nobody is left out.

`./x fuzz --target incremental_lives` plays more.
"""

import pytest
from kit.lives.incremental_fuzz import life


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 9, 3))
def test_what_is_served_is_what_the_log_says_and_everything_is_shared_out(first: int) -> None:
    assert sum(life(seed).generations for seed in range(first, first + 3)) > 20
