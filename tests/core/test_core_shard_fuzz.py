"""Random lives of a shard: what it serves is what its log says. `./x fuzz --target shard_lives`: more."""

import pytest
from kit.lives.cuts import small_cuts
from kit.lives.shard_fuzz import life


@pytest.mark.slow
@pytest.mark.parametrize("cut", [None, 1], ids=["at-once", "cut-small"])
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_what_is_served_is_what_the_log_says(first: int, cut: int | None) -> None:
    with small_cuts(cut):
        assert sum(life(seed).generations for seed in range(first, first + 20)) > 60
