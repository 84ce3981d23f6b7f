"""Random lives of a group: the core raises nothing. `./x fuzz --target group_lives` finds more."""

import pytest
from kit.lives.core_fuzz import drawn, failure_of, shrunk
from kit.lives.cuts import small_cuts


@pytest.mark.slow
@pytest.mark.parametrize("cut", [None, 1], ids=["at-once", "cut-small"])
@pytest.mark.parametrize("first", range(0, 400, 100))
def test_the_core_raises_nothing(first: int, cut: int | None) -> None:
    with small_cuts(cut):
        for seed in range(first, first + 100):
            failure = failure_of(drawn(seed))
            if failure is not None:
                steps = "\n".join(map(str, shrunk(drawn(seed), failure.kind)))
                pytest.fail(f"seed {seed}: {failure.trace}\nafter\n{steps}")
