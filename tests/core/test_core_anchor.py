"""An end that an earlier audit saw, against what a log shows now."""

import pytest
from muster_core.audit.anchor import End, check_end
from muster_core.audit.invariants import Findings
from muster_core.position import GENESIS, Position

END = End(Position(2, 22), b"h" * 32)
LATER = Position(3, 40)


def broken(found: bytes | None, first: Position, acknowledged: Position, **covered: bytes) -> tuple[int, str]:
    """How often L12 is broken, and what could not be compared; `covered`: hashes by place, as `_2_30`."""
    findings = Findings()
    places = {Position.parse(name.strip("_").replace("_", "-")): hash_ for name, hash_ in covered.items()}
    told = check_end(END, found, first, acknowledged, places, findings)
    assert findings.checked["L12"] == 1
    return findings.broken["L12"], told


def test_the_entry_itself_holds() -> None:
    assert broken(END.hash, GENESIS, LATER) == (0, "")


def test_another_entry_at_the_end_is_told() -> None:
    assert broken(b"x" * 32, GENESIS, LATER) == (1, "")


@pytest.mark.parametrize("acknowledged", [Position(2, 15), Position(4, 15), LATER])
def test_an_end_that_is_gone_is_told(acknowledged: Position) -> None:
    assert broken(None, GENESIS, acknowledged) == (1, "")


def test_an_end_that_was_trimmed_is_held_against_the_snapshots() -> None:
    first = Position(3, 30)
    assert broken(None, first, LATER, _2_22=END.hash) == (0, "")
    assert broken(None, first, LATER, _2_22=b"x" * 32) == (1, "")
    count, told = broken(None, first, LATER, _3_30=b"s" * 32)
    assert (count, "check an export with the same anchor" in told) == (0, True)
    assert broken(None, first, LATER) == (1, "")
    assert broken(None, first, LATER, _1_30=b"s" * 32) == (1, ""), (
        "a snapshot of an older epoch has not seen it"
    )
