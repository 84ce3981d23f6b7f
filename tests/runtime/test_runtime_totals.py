"""The sums of groups by whom they count for."""

import pytest
from muster_runtime.rpc.quotas.totals import Totals


@pytest.fixture
def totals() -> Totals:
    made = Totals()
    for number in range(10):
        made.add("even" if number % 2 == 0 else "odd", f"g{number}")
    return made


def test_each_group_counts_once_for_who_has_it_first(totals: Totals) -> None:
    totals.add("odd", "g0")
    assert (totals.count("even"), totals.count("odd"), totals.count("nobody")) == (5, 5, 0)
    for _ in range(2):
        totals.remove("g0")
    assert (totals.count("even"), totals.count("odd"), len(totals)) == (4, 5, 9)
    totals.add("odd", "g0")
    assert totals.count("odd") == 6


def test_all_are_given_some_at_a_time_whatever_changes_meanwhile(totals: Totals) -> None:
    assert totals.some(4) == [], "a round begins"
    seen = totals.some(4)
    totals.remove("g9")
    totals.add("odd", "g10")
    seen += totals.some(4) + totals.some(4)
    assert seen == [f"g{number}" for number in range(10)], "as they were when the round began"
    assert "g10" in totals.some(100)
    totals.clear()
    assert totals.some(100) == [] == totals.some(100)
    assert totals.count("odd") == 0
