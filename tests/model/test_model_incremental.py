"""The model of incremental groups: with all rules nothing breaks, and each rule is needed."""

from dataclasses import fields

import pytest
from model.incremental.case import IncrementalCase
from model.incremental.cases import SPACES
from model.incremental.dropped import DROPPED
from model.incremental.rules import Rules


@pytest.mark.long
@pytest.mark.parametrize("case", [*SPACES, *DROPPED], ids=lambda case: case.name.replace(" ", "_"))
def test_a_walk_ends_as_it_must(case: IncrementalCase) -> None:
    walk, good = case.walk(limit_s=300)
    assert good, (walk.states, walk.broken, walk.trace)


def test_every_rule_is_dropped() -> None:
    rules = {field.name for field in fields(Rules)} - {"instead"}
    assert {case.dropped for case in DROPPED} == rules
