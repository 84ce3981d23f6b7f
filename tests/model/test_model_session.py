"""The model of a member's life: with all rules never two owners, and each rule is needed."""

from dataclasses import fields

import pytest
from model.__main__ import run_session
from model.session import SessionRules
from model.session_cases import DROPPED, HELD, RIDDEN, SessionCase


@pytest.mark.long
@pytest.mark.parametrize("case", [*HELD, *RIDDEN, *DROPPED], ids=lambda case: case.name.replace(" ", "_"))
def test_a_walk_ends_as_it_must(case: SessionCase) -> None:
    walk, good = run_session(case, limit_s=300)
    assert good, (walk.states, walk.broken, walk.trace)


def test_every_rule_is_dropped_once() -> None:
    assert sorted(case.dropped for case in DROPPED) == sorted(field.name for field in fields(SessionRules))
