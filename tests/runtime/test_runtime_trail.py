"""The audit trail: what is told of calls, and that a flood of refusals fills no disk."""

import io
import json
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import structlog
from muster_runtime.logs import LogSettings, configure
from muster_runtime.rpc.access import trail as trails
from muster_runtime.rpc.access.trail import BURST, BURST_OF_ALL, EVERY_S, IDENTITIES_MAX, LISTED_MAX, Trail
from muster_runtime.rpc.identity import NOBODY, Identity, Proof
from muster_runtime.rpc.identity._identity import serve_as
from structlog.testing import capture_logs


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def trail(clock: Clock) -> Trail:
    return Trail(clock)


@pytest.fixture(autouse=True)
def nobody_afterwards() -> Iterator[None]:
    """Whoever a test is, the next one in this process is not."""
    yield
    serve_as(NOBODY)


def be(who: str) -> None:
    serve_as(Identity(who, Proof.TOKEN))


def refuse(trail: Trail) -> None:
    trail.refused("join", "group:g", "10.0.0.9", lambda: "no rule is for them")


def test_an_event_says_who_did_what_from_where_and_why_as_one_line_of_json(trail: Trail) -> None:
    out = io.StringIO()
    be("ann")
    try:
        configure(LogSettings(format="json"), out)
        trail.done("DeleteGroups", ["group:a", "group:b"], "10.0.0.9", {"group:b": "NON_EMPTY_GROUP"})
        refuse(trail)
    finally:
        structlog.reset_defaults()
    done, refused = map(json.loads, out.getvalue().splitlines())
    for line in (done, refused):
        assert line.pop("timestamp")
        common = {"event": "audit", "logger": "muster.audit", "level": "info", "who": "ann", "proof": "token"}
        assert {name: line.pop(name) for name in common} == common
    assert done == {
        "action": "DeleteGroups",
        "what": ["group:a", "group:b"],
        "where": "10.0.0.9",
        "outcome": "done",
        "errors": {"group:b": "NON_EMPTY_GROUP"},
    }
    assert refused == {
        "action": "join",
        "what": ["group:g"],
        "where": "10.0.0.9",
        "outcome": "refused",
        "reason": "no rule is for them",
    }


def test_of_a_call_about_many_things_the_first_ones_are_told(trail: Trail) -> None:
    many = [f"group:{number}" for number in range(LISTED_MAX + 500)]
    out = io.StringIO()
    try:
        configure(LogSettings(format="json"), out)
        trail.done("DeleteGroups", many[:LISTED_MAX], "10.0.0.9", {})
        trail.done("DeleteGroups", many, "10.0.0.9", dict.fromkeys(many[1:], "NON_EMPTY_GROUP"))
    finally:
        structlog.reset_defaults()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    whole, cut = ([line for line in lines if line["of"] == number] for number in (LISTED_MAX, LISTED_MAX + 1))
    assert [one for line in whole for one in line["what"]] == many[:LISTED_MAX]
    assert not [line for line in whole if "errors" in line]
    assert [one for line in cut for one in line["what"]] == [*many[:LISTED_MAX], f"… ({len(many):,})"]
    assert [one for line in cut for one in line.get("errors", ())] == many[1:LISTED_MAX]
    assert {line["outcome"] for line in lines} == {"done"}
    assert max(map(len, out.getvalue().splitlines())) < 10_000


def test_a_flood_of_refusals_is_told_in_part_and_counted(trail: Trail, clock: Clock) -> None:
    be("mallory")
    with capture_logs() as lines:
        for _ in range(BURST + 500):
            refuse(trail)
        assert len(lines) == BURST
        be("ann")
        refuse(trail)
        assert (len(lines), lines[-1]["who"]) == (BURST + 1, "ann")
        be("mallory")
        clock.now_s += EVERY_S
        for _ in range(500):
            refuse(trail)
    assert len(lines) == BURST + 2
    assert (lines[-1]["who"], lines[-1]["untold"]) == ("mallory", 500)


def test_what_failed_is_bounded_as_refusals_are_and_what_was_done_is_told_always(trail: Trail) -> None:
    be("mallory")
    with capture_logs() as lines:
        for _ in range(BURST + 5):
            trail.done("DeleteTopic", ["topic:t"], "10.0.0.9", {"topic:t": "UNKNOWN_TOPIC_OR_PARTITION"})
            trail.foreign("g", "m", "mallory", "10.0.0.9")
        for _ in range(BURST + 5):
            trail.done("DeleteTopic", ["topic:t"], "10.0.0.9", {})
    assert [line["outcome"] for line in lines].count("done") == BURST + 5
    assert [line["outcome"] for line in lines].count("failed") == BURST / 2
    assert [line["outcome"] for line in lines].count("refused") == BURST / 2


def test_all_identities_together_are_bounded_and_so_is_what_is_remembered(
    trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []

    def note(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        told.append(event["who"])
        raise structlog.DropEvent

    monkeypatch.setattr(trails, "log", structlog.wrap_logger(None, processors=[note]))
    for number in range(IDENTITIES_MAX + BURST_OF_ALL):
        be(f"identity-{number}")
        refuse(trail)
    assert len(told) == BURST_OF_ALL
    assert len(trail._of) == IDENTITIES_MAX


def test_failures_hide_nothing_that_may_be_done(trail: Trail) -> None:
    be("ann")
    with capture_logs() as lines:
        for error in ["UNKNOWN_TOPIC_OR_PARTITION"] * 2 * BURST + ["COORDINATOR_NOT_AVAILABLE"]:
            trail.done("DeleteTopic", ["topic:t"], "10.0.0.9", {"topic:t": f"ERROR_CODE_{error}"})
    assert [line["outcome"] for line in lines] == ["failed"] * BURST + ["unknown"]
