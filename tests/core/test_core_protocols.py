"""What members support: sizes, shared lists, and what all of them have in common."""

from collections import Counter
from typing import Any

import pytest
from muster_core.state.members.protocols import NO_PROTOCOLS, Protocols, Supporters, pairs_of, protocols_of
from muster_protos.muster.v1.coordinator_pb2 import GroupProtocol


def of(*names: str, metadata: bytes = b"") -> Protocols:
    return Protocols([(name, metadata) for name in names])


def test_protocols_are_their_names_and_metadata_and_know_their_size() -> None:
    protocols = of("range", "sticky", metadata=b"\x01" * 21)
    assert list(protocols) == [("range", b"\x01" * 21), ("sticky", b"\x01" * 21)]
    assert protocols.names == ("range", "sticky")
    assert protocols.size_bytes == (12 + 5 + 21) + (12 + 6 + 21)
    assert (NO_PROTOCOLS, NO_PROTOCOLS.names, NO_PROTOCOLS.size_bytes) == ((), (), 0)


def test_members_that_support_the_same_share_a_list() -> None:
    messages = [GroupProtocol(name="range", metadata=b"m"), GroupProtocol(name="sticky")]
    pairs = pairs_of(messages)
    assert pairs == (("range", b"m"), ("sticky", b""))
    assert protocols_of(pairs) is protocols_of(pairs_of(messages))
    assert of("range", "sticky").names is protocols_of(pairs).names


@pytest.mark.parametrize("twice", [1, 2], ids=["one of each", "two of each"])
def test_what_all_support_follows_the_members(twice: int) -> None:
    supporters = Supporters()
    assert supporters.by_all == frozenset()
    for protocols, by_all in ((of("x", "y"), {"x", "y"}), (of("y", "z"), {"y"}), (of("y"), {"y"})):
        for _ in range(twice):
            supporters.add(protocols)
            assert supporters.by_all == by_all
    for _ in range(twice):
        assert supporters.by_all == {"y"}
        supporters.remove(of("x", "y", metadata=b"other"))
    for _ in range(twice):
        assert supporters.by_all == {"y"}
        supporters.remove(of("y"))
    assert supporters.by_all == {"y", "z"}
    for _ in range(twice):
        supporters.remove(of("y", "z"))
    assert supporters.by_all == frozenset()
    supporters.add(of("x"))
    assert supporters.by_all == {"x"}


class _CountedByName(Counter[str]):
    """Must not be gone through: members may list a hundred thousand names."""

    def items(self) -> Any:
        raise AssertionError("all names are looked at")

    def __iter__(self) -> Any:
        raise AssertionError("all names are looked at")


def test_what_others_list_costs_a_member_that_comes_or_goes_nothing() -> None:
    supporters = Supporters()
    supporters._kinds_with = _CountedByName()
    for number in range(10):
        supporters.add(of("range", f"own-{number}"))
    for number in range(9):
        supporters.remove(of("range", f"own-{number}"))
    assert supporters.by_all == {"range", "own-9"}
    assert len(supporters._kinds_with) == 2
