"""The sums of groups by whom they count for."""

import pytest
from muster_runtime.rpc.quotas.totals import Total, Totals


@pytest.fixture
def totals() -> Totals:
    made = Totals()
    for number in range(10):
        made.add("even" if number % 2 == 0 else "odd", f"g{number}")
    return made


def test_each_group_counts_once_for_who_has_it_first(totals: Totals) -> None:
    totals.add("odd", "g0")
    assert [totals.of(name).groups for name in ("even", "odd", "nobody")] == [5, 5, 0]
    for _ in range(2):
        totals.remove("g0")
    assert (totals.of("even").groups, totals.of("odd").groups, len(totals)) == (4, 5, 9)
    totals.add("odd", "g0")
    assert totals.of("odd").groups == 6
    assert (totals.whose("g0"), totals.whose("g10")) == ("odd", "")


def test_what_is_in_groups_counts_with_them(totals: Totals) -> None:
    totals.resize("g0", 3, 50)
    totals.resize("g2", 1, 0)
    totals.resize("g0", 2, 60)
    totals.resize("elsewhere", 9, 9)
    assert (totals.of("even"), totals.of("odd")) == (Total(5, 3, 60), Total(5))
    totals.add("odd", "g0")
    totals.remove("g0")
    assert totals.of("even") == Total(4, 1, 0)
    totals.add("odd", "g0")
    assert totals.of("odd") == Total(6), "it counts as empty until somebody says what is in it"
    for number in range(10):
        totals.remove(f"g{number}")
    assert totals.of("even") == totals.of("odd") == Total()


def test_what_open_calls_may_bring_counts_until_it_has_come_or_they_end(totals: Totals) -> None:
    first, second = totals.expect("even", 1, 0), totals.expect("even", 1, 0)
    third = totals.expect("even", 0, 10)
    assert (totals.of("even"), totals.with_coming("even")) == (Total(5), Total(5, 2, 10))
    assert totals.with_coming("odd") == totals.of("odd")
    totals.resize("g0", 1, 0)
    assert totals.with_coming("even") == Total(5, 2, 10), "one has come, and is answered later"
    first()
    assert totals.with_coming("even") == Total(5, 2, 10), "one is to come"
    second()
    assert totals.with_coming("even") == Total(5, 1, 10), "it was refused"
    totals.resize("g2", 0, 4)
    assert totals.with_coming("even") == Total(5, 1, 10)
    totals.resize("g2", 0, 0)
    assert totals.with_coming("even") == Total(5, 1, 6), "what goes leaves room at once"
    third()
    assert totals.with_coming("even") == totals.of("even") == Total(5, 1, 0)
    totals.resize("g2", 0, 7)
    assert totals.with_coming("even") == Total(5, 1, 7)


def test_what_was_there_before_is_not_what_open_calls_bring(totals: Totals) -> None:
    ended = totals.expect("even", 2, 10)
    totals.resize("g0", 5, 500, brought=False)
    assert totals.with_coming("even") == Total(5, 7, 510), "a shard was loaded"
    totals.resize("g0", 7, 510)
    assert totals.with_coming("even") == totals.of("even") == Total(5, 7, 510)
    ended()
    assert totals.with_coming("even") == totals.of("even")


def test_calls_that_bring_nothing_end_in_any_order(totals: Totals) -> None:
    first, second = totals.expect("even", 0, 0), totals.expect("even", 0, 0)
    third = totals.expect("even", 1, 0)
    third()
    first()
    second()
    assert totals.with_coming("even") == totals.of("even")


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
    assert totals.of("odd") == Total()
