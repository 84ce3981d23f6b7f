"""The judge of tests/deploy/e2e.sh must be able to say no."""

import pytest
from chaos.history import Event
from deploy.judge import NS_PER_MS, Judge

BAR_MS = 500


def commit(at_ms: int, value: int, *, slot: str = "g/a", partition: int = 0, took_ms: int = 1) -> list[Event]:
    """A commit that was acknowledged `took_ms` before `at_ms` is over."""
    operation = f"{slot}-{partition}-{value}"
    begun = {"t": (at_ms - took_ms) * NS_PER_MS, "e": "invoke", "f": "commit", "op": operation}
    return [
        {**begun, "s": slot, "g": "g", "p": partition, "v": value, "m": slot},
        {"t": at_ms * NS_PER_MS, "e": "ok", "op": operation},
    ]


def fetch(at_ms: int, value: int) -> list[Event]:
    """A read of partition 0."""
    operation = f"fetch-{at_ms}"
    return [
        {
            "t": at_ms * NS_PER_MS,
            "e": "invoke",
            "f": "fetch",
            "op": operation,
            "s": "g/a",
            "g": "g",
            "ps": [0],
        },
        {"t": at_ms * NS_PER_MS, "e": "ok", "op": operation, "vs": {"0": value}},
    ]


def assigned(at_ms: int, generation: int, member: str = "g/a", partition: int = 0) -> Event:
    """A member was given a partition."""
    tokens = {str(partition): f"1-{generation}"}
    note = {"t": at_ms * NS_PER_MS, "e": "note", "f": "assigned", "s": member, "g": "g", "m": member}
    return {**note, "gen": generation, "tokens": tokens}


@pytest.fixture
def judge() -> Judge:
    """Of one worker, who commits and has its partition."""
    judge = Judge(workers=1)
    judge.feed([assigned(0, 1), *commit(100, 1)])
    return judge


def test_steady_commits_hold(judge: Judge) -> None:
    events = [event for number in range(2, 10) for event in commit(number * 100, number)]
    verdict = judge.judge("nothing", BAR_MS, [], [*events, *fetch(950, 9)], 1_000 * NS_PER_MS)
    assert verdict.problems == ()
    assert (verdict.gap_ms, verdict.commits, verdict.rebalances) == (100, 8, 0)
    assert judge.acknowledged == 9
    assert "holds" in verdict.row()


def test_gap_from_before_the_fault_counts(judge: Judge) -> None:
    verdict = judge.judge("a fault", BAR_MS, [], [*commit(800, 2), *commit(900, 3)], 1_000 * NS_PER_MS)
    assert verdict.gap_ms == 700
    assert "700 ms without" in verdict.problems[0]
    assert "BROKEN" in verdict.row()


def test_gap_before_the_fault_is_shown_and_not_judged(judge: Judge) -> None:
    before = [*commit(900, 2), *commit(1_000, 3)]
    verdict = judge.judge("a fault", BAR_MS, before, commit(1_100, 4), 1_200 * NS_PER_MS)
    assert (verdict.calm_ms, verdict.gap_ms, verdict.commits) == (800, 100, 3)
    assert verdict.problems == ()


def test_what_breaks_before_the_fault_counts(judge: Judge) -> None:
    verdict = judge.judge("a fault", BAR_MS, [assigned(150, 2)], commit(200, 2), 300 * NS_PER_MS)
    assert verdict.rebalances == 1
    assert verdict.problems


def test_worker_that_stays_silent_counts(judge: Judge) -> None:
    verdict = judge.judge("a fault", BAR_MS, [], [], 2_100 * NS_PER_MS)
    assert verdict.gap_ms == 2_000
    assert verdict.problems


def test_one_silent_worker_is_not_hidden_by_another(judge: Judge) -> None:
    other = [
        event for number in range(2, 21) for event in commit(number * 100, number, slot="g/b", partition=1)
    ]
    verdict = judge.judge("a fault", BAR_MS, [], other, 2_000 * NS_PER_MS)
    assert verdict.gap_ms == 1_900


def test_worker_that_never_began_is_missed() -> None:
    verdict = Judge(workers=2).judge("a fault", BAR_MS, [], commit(100, 1), 200 * NS_PER_MS)
    assert "1 workers never" in verdict.problems[0]


def test_unacknowledged_commits_are_no_commits(judge: Judge) -> None:
    begun, ended = commit(600, 2)
    verdict = judge.judge("a fault", BAR_MS, [], [begun, {**ended, "e": "info"}], 700 * NS_PER_MS)
    assert (verdict.commits, verdict.gap_ms) == (0, 600)


def test_lost_commit_is_found(judge: Judge) -> None:
    verdict = judge.judge("a fault", BAR_MS, [], [*commit(200, 2), *fetch(250, 1)], 300 * NS_PER_MS)
    assert verdict.problems == ("O1: g/0 was read as 1, 2 had been acknowledged before the read began",)


def test_rebalance_is_counted_once_for_its_group(judge: Judge) -> None:
    events = [*commit(200, 2), assigned(210, 2), assigned(220, 2, "g/b", 1), *commit(300, 3)]
    verdict = judge.judge("a fault", BAR_MS, [], events, 400 * NS_PER_MS)
    assert verdict.rebalances == 1
    assert "1 rebalances" in verdict.problems[0]


def test_two_owners_are_found(judge: Judge) -> None:
    verdict = judge.judge("a fault", BAR_MS, [], [assigned(150, 1, "g/b"), *commit(200, 2)], 300 * NS_PER_MS)
    assert verdict.problems[0].startswith("G9:")


def test_what_was_told_is_not_told_again(judge: Judge) -> None:
    judge.judge("a fault", BAR_MS, [], [*commit(200, 2), *fetch(250, 1)], 300 * NS_PER_MS)
    assert judge.judge("the next", BAR_MS, [], commit(350, 3), 400 * NS_PER_MS).problems == ()
