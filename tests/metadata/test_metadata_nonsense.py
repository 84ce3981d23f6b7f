"""What stands on a node and is no answer, row or introduction of ours harms nobody."""

import json
from typing import Any

import pytest
from muster_metadata.cluster.leases import LeaseRow
from muster_metadata.cluster.owners import OwnerRow
from muster_metadata.cluster.tables import lease_rows, owner_rows
from muster_metadata.nodes.configuration import Configuration, Introduction, Unusable, agreed_configuration
from muster_metadata.nodes.node import Node
from muster_metadata.nodes.problem import ProblemKind
from muster_metadata.nodes.reply import Status, scripted
from structlog.testing import capture_logs

LEASE = LeaseRow("n", "s", 1, 2, serving=((0, 1),), features=("a",))
OWNER = OwnerRow(1, "n", "s")
PLACES = ("a:1", "b:1", "c:1")


@pytest.mark.parametrize("raw", [[[b"OK"]], [{}], [None], [1], [], None, b"OK", [b"FINE"]])
def test_an_answer_that_no_script_gives_makes_no_sense(raw: Any) -> None:
    reply = scripted(raw)
    assert reply.status is Status.BROKEN
    assert reply.problem is not None
    assert reply.problem.kind is ProblemKind.NONSENSE


@pytest.mark.parametrize("values", [[], [None], [b"foreign"], [b"foreign", None], [b"empty"]])
def test_a_node_that_does_not_say_why_it_has_no_log_has_none(values: list[Any]) -> None:
    node = Node(1, "redis://a:1", 500)
    node.belongs_to("c", 4, 3, addresses=PLACES)
    assert node._read([b"NOLOG", *values]).status in (Status.NOLOG, Status.STRANGER)


@pytest.mark.parametrize(
    "change",
    [
        {"run": float("inf")},
        {"run": float("nan")},
        {"counter": 2**70},
        {"counter": "9" * 5_000},
        {"port": 65_536},
        {"node_id": ["n"]},
        {"session": None},
        {"host": 1},
        {"version": "\ud800"},
        {"serving": [1, 2]},
        {"serving": [["0", 1]]},
        {"features": [[]]},
    ],
)
def test_a_lease_that_is_none_is_passed_over(change: dict[str, Any]) -> None:
    text = json.dumps(json.loads(LEASE.to_json()) | change).encode()
    with capture_logs() as lines:
        assert lease_rows([b"n", text, b"m", LEASE.to_json().encode()]) == {"m": LEASE}
    assert [line["event"] for line in lines] == ["table_row_unreadable"]


@pytest.mark.parametrize(
    "change", [{"epoch": "1"}, {"epoch": 1e400}, {"epoch": -1}, {"node_id": []}, {"x": 1}]
)
def test_an_owner_that_is_none_is_passed_over(change: dict[str, Any]) -> None:
    text = json.dumps(json.loads(OWNER.to_json()) | change).encode()
    assert owner_rows([b"0", text, b"1", OWNER.to_json().encode()]) == {1: OWNER}


def test_a_row_that_is_nested_too_deep_is_passed_over() -> None:
    deep = b"[" * 100_000
    assert lease_rows([b"n", deep]) == {}
    assert owner_rows([b"0", deep]) == {}


def test_a_number_that_a_script_made_a_float_of_is_read() -> None:
    text = json.dumps(json.loads(LEASE.to_json()) | {"run": 1.0, "draining": 0}).encode()
    assert lease_rows([b"n", text]) == {"n": LEASE}


def test_nodes_that_do_not_say_which_servers_are_nodes_are_a_log_or_none() -> None:
    silent = [Introduction(f"c/4/{number} of 3/1", 0, (), f"run-{number}") for number in (1, 2, 3)]
    assert isinstance(agreed_configuration(PLACES, silent), Configuration | Unusable)
    named = Introduction("c/4/1 of 3/2", 0, PLACES, "run-1")
    assert isinstance(agreed_configuration(PLACES, [named, *silent[1:]]), Configuration | Unusable)
