"""Each checker finds what is wrong with a falsified history, and nothing in an honest one."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from chaos.checkers import Answers, Checker, Commits, Generations, check_log, check_sink
from chaos.history import Event, Histories, Recorder, with_ends

MS = 1_000_000


def told(checker: Checker, events: Sequence[Event]) -> list[str]:
    for event in events:
        checker.feed(event)
    return [violation.promise for violation in checker.violations]


def commit(at: int, value: int, *, kind: str = "ok", op: str = "", ends: int | None = None) -> list[Event]:
    op = op or f"c{at}"
    begun = {"t": at, "e": "invoke", "f": "commit", "op": op, "g": "g", "p": 0, "v": value, "m": "m"}
    if kind == "open":
        return [begun]
    return [begun, {"t": at + 1 if ends is None else ends, "e": kind, "op": op}]


def fetch(at: int, value: int, *, op: str = "") -> list[Event]:
    op = op or f"f{at}"
    return [
        {"t": at, "e": "invoke", "f": "fetch", "op": op, "g": "g", "ps": [0]},
        {"t": at + 1, "e": "ok", "op": op, "vs": {"0": value}},
    ]


def assigned(at: int, member: str, generation: int, token: str = "1-1", partition: int = 0) -> Event:
    tokens = {str(partition): token}
    return {"t": at, "e": "note", "f": "assigned", "g": "g", "m": member, "gen": generation, "tokens": tokens}


def answer(at: int, node: str, epoch: int, *, what: str = "heartbeat", ends: int) -> list[Event]:
    op = f"a{at}{node}"
    begun: dict[str, Any] = {"t": at, "e": "invoke", "f": what, "op": op, "g": "g", "node": node, "ps": [0]}
    return [begun, {"t": ends, "e": "ok", "op": op, "epoch": epoch}]


def test_an_honest_history_of_commits() -> None:
    events = [
        *fetch(1, -1),
        *commit(10, 0),
        *fetch(20, 0),
        *commit(30, 1, kind="info"),
        *fetch(40, 0),  # unknown: both may be
        *fetch(50, 1),
        *commit(60, 2, kind="open"),
        *fetch(70, 2),
    ]
    checker = Commits()
    assert told(checker, events) == []
    assert checker.checked == 5


def test_a_lost_commit_is_found() -> None:
    assert told(Commits(), [*commit(1, 0), *commit(10, 1), *fetch(20, 0)]) == ["O1"]
    assert told(Commits(), [*commit(1, 0), *fetch(20, -1)]) == ["O1"]


def test_a_read_that_began_before_the_acknowledgement_may_miss_it() -> None:
    begun, ended = fetch(5, -1)
    asked, acknowledged = commit(1, 0, ends=6)
    ended["t"] = 9
    assert told(Commits(), [asked, begun, acknowledged, ended]) == []


def test_a_value_that_nobody_asked_for_is_found() -> None:
    assert told(Commits(), [*commit(1, 0), *fetch(20, 7)]) == ["O2"]


def test_an_honest_history_of_generations() -> None:
    events = [
        assigned(1, "a", 1),
        assigned(2, "b", 1, partition=1),
        assigned(3, "a", 1),  # it was away, and got the same back
        assigned(4, "b", 2, "2-7"),
    ]
    checker = Generations()
    assert told(checker, events) == []
    assert checker.newest == {"g": 2}


@pytest.mark.parametrize(
    ("events", "promise"),
    [
        ([assigned(1, "a", 1), assigned(2, "b", 1)], "G9"),
        ([assigned(1, "a", 1), assigned(2, "a", 1, "1-2")], "G4"),
        ([assigned(1, "a", 2), assigned(2, "a", 1)], "M7"),
        (
            [
                {"t": n, "e": "note", "f": "joined", "g": "g", "gen": 3, "m": "a", "leader": leader}
                for n, leader in enumerate(("a", "b"))
            ],
            "G1",
        ),
        (
            [
                {"t": n, "e": "note", "f": "synced", "g": "g", "gen": 3, "m": "a", "bytes": data}
                for n, data in enumerate(("00", "01"))
            ],
            "G4",
        ),
    ],
    ids=["two owners", "other tokens", "back", "number used twice", "other bytes"],
)
def test_a_falsified_generation_is_found(events: list[Event], promise: str) -> None:
    assert told(Generations(), events) == [promise]


def more(at: int, member: str, epoch: int, token: str = "1-1") -> Event:
    """A member of an incremental group is told of one more partition."""
    return {**assigned(at, member, epoch, token), "kind": "incremental"}


def test_an_honest_history_of_an_incremental_group() -> None:
    events = [
        more(1, "a", 1, "1-1"),
        more(2, "b", 1, "1-5"),  # it was given back within the epoch
        more(3, "a", 2, "1-9"),
    ]
    checker = Generations()
    assert told(checker, events) == []
    assert checker.newest == {"g": 2}


@pytest.mark.parametrize(
    ("events", "promise"),
    [
        ([more(1, "a", 1), more(2, "b", 2)], "I3"),
        ([more(1, "a", 1, "1-7"), more(2, "a", 2, "1-5")], "I3"),
        ([more(1, "a", 2, "1-5"), more(2, "a", 1, "1-6")], "M7"),
    ],
    ids=["one token for two", "a token that shrinks", "an epoch that goes back"],
)
def test_a_falsified_incremental_group_is_found(events: list[Event], promise: str) -> None:
    assert told(Generations(), events) == [promise]


def test_an_honest_history_of_answers() -> None:
    events = [
        *answer(1, "old", 3, ends=2),
        *answer(100 * MS, "new", 4, ends=101 * MS),
        # A wrong suspicion: the holder answers heartbeats until its own deadline, not longer.
        *answer(200 * MS, "old", 3, ends=201 * MS),
        *answer(5_000 * MS, "new", 4, what="fetch", ends=5_001 * MS),
    ]
    checker = Answers()
    assert told(checker, events) == []
    assert checker.checked == 4


def test_an_answer_of_a_deposed_owner_is_found() -> None:
    events = [*answer(1, "new", 4, ends=2), *answer(100 * MS, "old", 3, ends=2_100 * MS)]
    assert told(Answers(), events) == ["E3"]


def test_a_read_at_a_deposed_owner_is_found() -> None:
    events = [*answer(1, "new", 4, ends=2), *answer(10, "old", 3, what="fetch", ends=11)]
    assert told(Answers(), events) == ["E5"]


def test_an_answer_after_the_deadline_is_found() -> None:
    silenced = {"t": 0, "e": "note", "f": "silenced", "node": "a"}
    heard = {"t": 3_000 * MS, "e": "note", "f": "heard", "node": "a"}
    late = answer(2_400 * MS, "a", 3, ends=2_401 * MS)
    assert told(Answers(), [silenced, *answer(1, "a", 3, ends=1_000 * MS)]) == []
    assert told(Answers(), [silenced, *late]) == ["E1"]
    assert told(Answers(), [silenced, heard, *answer(4_000 * MS, "a", 3, ends=4_001 * MS)]) == []


def test_the_sink_took_an_old_token() -> None:
    honest = [
        ("g", 0, "1-1", "a", 0),
        ("g", 0, "1-1", "a", 1),
        ("g", 0, "2-1", "b", 1),
        ("g", 1, "1-1", "c", 0),
    ]
    assert check_sink(honest) == []
    zombie = check_sink([*honest, ("g", 0, "1-1", "a", 2)])
    assert [violation.promise for violation in zombie] == ["token"]
    shared = check_sink([*honest, ("g", 0, "2-1", "a", 2)])
    assert [violation.promise for violation in shared] == ["token"]


def test_the_log_lacks_or_repeats_a_commit() -> None:
    key = ("g", 0)
    acknowledged = {key: {0: "a", 1: "a", 3: "b"}}
    whole = [(0, "a"), (1, "a"), (2, "a"), (3, "b")]
    assert check_log(acknowledged, {key: whole}) == []
    lost = check_log(acknowledged, {key: whole[:3]})
    assert [violation.promise for violation in lost] == ["L5"]
    assert [violation.promise for violation in check_log(acknowledged, {})] == ["L5"] * 3
    twice = check_log(acknowledged, {key: [(0, "a"), (1, "a"), (1, "a"), (3, "b")]})
    assert [violation.promise for violation in twice] == ["L5"]
    back = check_log(acknowledged, {key: [(1, "a"), (0, "a"), (3, "b")]})
    assert [violation.promise for violation in back] == ["O2"]


def test_a_trimmed_log_lacks_only_its_beginning() -> None:
    key = ("g", 0)
    acknowledged = {key: {0: "a", 1: "a", 2: "a"}}
    assert check_log(acknowledged, {key: [(1, "a"), (2, "a")]}, trimmed=True) == []
    assert check_log(acknowledged, {}, trimmed=True) == []
    hole = check_log({key: {0: "a", 1: "a", 2: "a"}}, {key: [(0, "a"), (2, "a")]}, trimmed=True)
    assert [violation.promise for violation in hole] == ["L5"]


def test_histories_are_read_in_order_and_to_the_last_whole_line(tmp_path: Path) -> None:
    first, second = (Recorder(tmp_path / f"{name}.jsonl", name) for name in ("a", "b"))
    operation = first.invoke("commit", v=1)
    second.note("lost", s="x")
    first.end("ok", operation)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"t": 1')
    histories = Histories(tmp_path)
    events = histories.until(1 << 62)
    assert [event["e"] for event in events] == ["invoke", "note", "ok"]
    assert histories.until(1 << 62) == []
    assert [(begun["v"], end and end["e"]) for begun, end in with_ends(events)] == [(1, "ok")]
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write(', "e": "note", "f": "late"}\n')
    assert [event["f"] for event in histories.until(1 << 62)] == ["late"]
    assert json.loads((tmp_path / "b.jsonl").read_text())["s"] == "x"
