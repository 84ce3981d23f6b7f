"""The model of the quorum log: with all rules nothing breaks, without any one of them something does."""

from dataclasses import fields

import pytest
from model.__main__ import run
from model.cases import DROPPED, SHALLOW, Case
from model.state import Rules


@pytest.mark.long
@pytest.mark.parametrize("case", SHALLOW, ids=lambda case: case.name.replace(" ", "_"))
def test_nothing_breaks_with_all_rules(case: Case) -> None:
    walk, good = run(case, limit_s=300)
    assert good, (walk.broken, walk.trace)


@pytest.mark.slow
@pytest.mark.parametrize("case", DROPPED, ids=lambda case: case.dropped)
def test_something_breaks_without_a_rule(case: Case) -> None:
    walk, good = run(case, limit_s=300)
    assert good, f"{walk.states} states, and nothing broke"
    assert walk.trace


def test_every_rule_is_dropped_once() -> None:
    assert sorted(case.dropped for case in DROPPED) == sorted(field.name for field in fields(Rules))
