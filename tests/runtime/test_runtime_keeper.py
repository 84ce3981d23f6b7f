"""What of the audit trail is sent to be kept: bounded, gathered, and never in the way of a call."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from kit.waiting import until
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_runtime.rpc.access import keeper as keepers
from muster_runtime.rpc.access.keeper import KINDS_MAX, KINDS_OF_ONE_MAX, WAITING_MAX, Keeper
from muster_runtime.rpc.access.trail import LISTED_MAX, Trail
from muster_runtime.rpc.identity import Identity, Proof
from muster_runtime.rpc.identity._identity import serve_as

TrailEvent = metadata_pb2.TrailEvent


class Log:
    """Keeps what it is sent, unless it is away."""

    def __init__(self) -> None:
        self.kept: dict[bytes, TrailEvent] = {}
        self.away = False
        self.attempts = 0

    async def send(self, events: Sequence[TrailEvent]) -> bool:
        self.attempts += 1
        if self.away:
            return False
        assert len(events) <= keepers.BATCH
        self.kept.update(
            (event.event_id, TrailEvent.FromString(event.SerializeToString())) for event in events
        )
        return True

    @property
    def told(self) -> int:
        """How many calls the events stand for, or say were left out."""
        return sum(event.count + event.left_out for event in self.kept.values())


@pytest.fixture
def stored() -> Log:
    return Log()


@pytest.fixture
async def keeper(stored: Log, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Keeper]:
    monkeypatch.setattr(keepers, "EVERY_S", 0.2)
    monkeypatch.setattr(keepers, "RETRY_MAX_S", 0.01)
    made = Keeper("coordinator c-1")
    made.start(stored.send)
    yield made
    await made.stop(flush=False)


@pytest.fixture
def trail(keeper: Keeper) -> Trail:
    made = Trail()
    made.keeper = keeper
    return made


def be(who: str) -> None:
    serve_as(Identity(who, Proof.TOKEN))


async def test_an_event_says_who_did_what_from_where_and_by_which_server(trail: Trail, stored: Log) -> None:
    be("ann")
    trail.done("DeleteGroups", ["group:a", "group:b"], "10.0.0.9", {"group:b": "NON_EMPTY_GROUP"})
    trail.rules_changed("/etc/muster/access.toml", "ab" * 32, 7)
    trail.refused("join", "group:g", "10.0.0.9", lambda: "no rule is for them")
    trail.done("DeleteTopic", ["topic:t"], "10.0.0.9", {"topic:t": "UNKNOWN_TOPIC_OR_PARTITION"})
    trail.foreign("g", "m", "bob", "10.0.0.8")
    trail.unproven("g", "n", "", "10.0.0.7")
    await until(lambda: len(stored.kept) == 6, "all are kept")
    done, rules, refused, failed, foreign, unproven = stored.kept.values()
    for event in stored.kept.values():
        assert (event.server, event.count, event.left_out) == ("coordinator c-1", 1, 0)
        assert event.at_ms > 1_700_000_000_000
    assert (done.action, done.who, done.proof, done.where) == ("DeleteGroups", "ann", "token", "10.0.0.9")
    assert (list(done.what), dict(done.errors)) == (["group:a", "group:b"], {"group:b": "NON_EMPTY_GROUP"})
    assert (rules.outcome, rules.where) == ("done", "/etc/muster/access.toml")
    assert "ab" * 32 in rules.reason
    assert (refused.outcome, refused.reason) == ("refused", "no rule is for them")
    assert (failed.outcome, failed.reason) == ("failed", "UNKNOWN_TOPIC_OR_PARTITION")
    assert (foreign.who, list(foreign.what), foreign.outcome) == ("bob", ["member:g/m"], "refused")
    assert (unproven.who, list(unproven.what), unproven.outcome) == ("", ["member:g/n"], "refused")
    assert "secret" in unproven.reason


async def test_a_call_that_may_still_be_done_is_kept_with_what_was_done(trail: Trail, stored: Log) -> None:
    be("ann")
    trail.done("DeleteTopic", ["topic:t"], "10.0.0.9", {"topic:t": "ERROR_CODE_COORDINATOR_NOT_AVAILABLE"})
    await until(lambda: len(stored.kept) == 1, "it is kept")
    (event,) = stored.kept.values()
    assert (event.outcome, dict(event.errors)) == (
        "unknown",
        {"topic:t": "ERROR_CODE_COORDINATOR_NOT_AVAILABLE"},
    )


async def test_refusals_of_one_caller_are_gathered_and_all_counted(trail: Trail, stored: Log) -> None:
    be("mallory")
    for number in range(5_000):
        trail.refused("join", f"group:{number}", "10.0.0.9", lambda: "no rule")
        trail.refused("commit", "group:same", "10.0.0.9", lambda: "no rule")
    be("ann")
    trail.refused("join", "group:ann", "10.0.0.7", lambda: "no rule")
    await until(lambda: stored.told == 10_001, "all are told")
    of_mallory = [event for event in stored.kept.values() if event.who == "mallory"]
    assert len(of_mallory) <= KINDS_OF_ONE_MAX + 2
    assert {event.count for event in of_mallory if list(event.what) == ["group:same"]} == {5_000}
    assert [event.count for event in stored.kept.values() if event.who == "ann"] == [1]


@pytest.mark.slow
async def test_refusals_of_many_callers_are_bounded_and_the_others_counted(trail: Trail, stored: Log) -> None:
    for number in range(5_000):
        be(f"identity-{number}")
        trail.refused("join", "group:g", "10.0.0.9", lambda: "no rule")
    await until(lambda: len(stored.kept) == KINDS_MAX, "those that are told")
    be("ann")
    trail.done("DeleteTopic", ["topic:t"], "10.0.0.9", {})
    await until(lambda: stored.told == 5_001, "the others are counted")


async def test_no_flood_of_refusals_pushes_aside_what_was_done(trail: Trail, stored: Log) -> None:
    """Also where so much was done that it is gathered, as the refusals of many callers are."""
    for number in range(2 * KINDS_MAX):
        be(f"identity-{number}")
        trail.refused("join", "group:g", "10.0.0.9", lambda: "no rule")
    be("ann")
    for number in range(2 * keepers.KINDS_OF_ONE_MAX):
        trail.refused("join", f"group:{number}", "10.0.0.9", lambda: "no rule")
    for _ in range(keepers.DONE_BURST):
        trail.done("CreateTopic", ["topic:t"], "10.0.0.9", {})
    trail.done("DeleteTopic", ["topic:t"], "10.0.0.9", {})
    await until(lambda: any(event.action == "DeleteTopic" for event in stored.kept.values()), "it is kept")
    (deleted,) = (event for event in stored.kept.values() if event.action == "DeleteTopic")
    assert (deleted.who, list(deleted.what)) == ("ann", ["topic:t"])


@pytest.mark.slow
async def test_a_process_ends_though_the_last_events_cannot_be_sent(trail: Trail, keeper: Keeper) -> None:
    async def send(_: Sequence[TrailEvent]) -> bool:
        raise ValueError("the channel is closed")

    await keeper.stop(flush=False)
    trail.refused("join", "group:g", "10.0.0.9", lambda: "no rule")
    keeper.start(send)
    await keeper.stop()


@pytest.mark.slow
async def test_many_calls_that_were_done_are_gathered_after_a_burst(trail: Trail, stored: Log) -> None:
    be("ann")
    for number in range(3_000):
        trail.done("CreateTopic", [f"topic:{number}"], "10.0.0.9", {})
    await until(lambda: stored.told == 3_000, "all are told")
    assert len(stored.kept) <= keepers.DONE_BURST + KINDS_OF_ONE_MAX + 10


async def test_while_the_log_is_away_calls_do_not_wait_and_what_is_left_out_is_counted(
    keeper: Keeper, stored: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepers, "DONE_BURST", 10**6)
    keeper._allowance = 1e6
    stored.away = True
    for number in range(WAITING_MAX + 500):
        keeper.done("CreateTopic", "ann", "token", [f"topic:{number}"], "10.0.0.9", "", {})
    assert len(keeper._done) == WAITING_MAX
    await until(lambda: stored.attempts > 2, "it tries again")
    stored.away = False
    await until(lambda: stored.told == WAITING_MAX + 500, "all are told or counted")
    assert len(stored.kept) == WAITING_MAX
    assert sum(event.left_out for event in stored.kept.values()) == 500


async def test_a_send_that_fails_or_raises_is_repeated_with_the_same_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keepers, "RETRY_MAX_S", 0.01)
    seen: list[list[bytes]] = []

    async def send(events: Sequence[TrailEvent]) -> bool:
        seen.append([event.event_id for event in events])
        if len(seen) == 1:
            raise RuntimeError("planned")
        return len(seen) > 2

    keeper = Keeper("discovery")
    keeper.done("DeleteTopic", "ann", "token", ["topic:t"], "", "", {})
    keeper.start(send)
    await until(lambda: len(seen) == 3, "sent three times")
    assert seen[0] == seen[1] == seen[2]
    await until(lambda: not keeper._done, "nothing waits any more")
    await keeper.stop()
    assert len(seen) == 3


async def test_a_stop_sends_what_waits_and_does_not_wait_for_a_log_that_hangs(
    stored: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper("discovery")
    keeper.start(stored.send)
    keeper.gather("refused", "join", "mallory", "token", "group:g", "", lambda: "no rule")
    await keeper.stop()
    assert [event.who for event in stored.kept.values()] == ["mallory"]

    async def hang(_: Sequence[TrailEvent]) -> bool:
        await asyncio.Event().wait()
        return True

    monkeypatch.setattr(keepers, "LAST_TRY_S", 0.05)
    keeper = Keeper("discovery")
    keeper.start(hang)
    keeper.done("DeleteTopic", "ann", "token", ["topic:t"], "", "", {})
    async with asyncio.timeout(60):
        await keeper.stop()


async def test_all_that_a_call_did_is_kept_however_much_it_names(trail: Trail, stored: Log) -> None:
    """Else who deletes a group names enough others before it."""
    be("ann")
    many = [f"group:{number}" for number in range(LISTED_MAX)]
    errors = dict.fromkeys(many[::7], "ERROR_CODE_NON_EMPTY_GROUP")
    trail.done("DeleteGroups", many, "10.0.0.9", errors)
    await until(lambda: sum(len(event.what) for event in stored.kept.values()) == len(many), "all are kept")
    assert [one for event in stored.kept.values() for one in event.what] == many
    kept_errors: dict[str, str] = {}
    for event in stored.kept.values():
        assert set(event.errors) <= set(event.what)
        kept_errors |= event.errors
    assert kept_errors == errors
    assert len(stored.kept) < 40


async def test_after_a_burst_each_thing_of_a_call_is_told_still(trail: Trail, stored: Log) -> None:
    """Else who uses it up, and names something else first, is not told of the rest."""
    be("ann")
    for _ in range(keepers.DONE_BURST):
        trail.done("CreateTopic", ["topic:t"], "10.0.0.9", {})
    trail.done("DeleteGroups", ["group:mine", "group:yours"], "10.0.0.9", {"group:mine": "NON_EMPTY_GROUP"})
    trail.done(
        "DeleteGroups",
        ["group:a", "group:b"],
        "",
        {"group:a": "NON_EMPTY_GROUP", "group:b": "NON_EMPTY_GROUP"},
    )

    def told(outcome: str) -> set[str]:
        return {
            one
            for event in stored.kept.values()
            if (event.action, event.outcome) == ("DeleteGroups", outcome)
            for one in event.what
        }

    await until(lambda: told("done") == {"group:mine", "group:yours"}, "both are kept")
    await until(lambda: told("failed") == {"group:a", "group:b"}, "what failed, too")


def test_an_event_of_the_longest_texts_is_one_that_metadata_takes() -> None:
    keeper = Keeper("😀" * 5_000)
    texts = [f"{number}{'😀' * 5_000}" for number in range(keepers.DONE_BURST)]
    keeper.done(
        "DeleteGroups", "😀" * 512, "token", texts, texts[0], texts[0], dict.fromkeys(texts, "UNKNOWN")
    )
    keeper.gather("refused", "join", "😀" * 512, "token", texts[0], texts[0], lambda: texts[0])
    keeper._end_interval()
    for event in (*keeper._done, *keeper._refused):
        assert event.ByteSize() <= 8 << 10
        assert event.who == "😀" * 512
        assert event.what
