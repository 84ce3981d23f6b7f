"""The model of kept partitions: never two owners, always one in reach, and each rule is needed."""

from dataclasses import fields

import pytest
from model.__main__ import run_keeping
from model.keeping import KeepingRules
from model.keeping_cases import DROPPED, HELD, KeepingCase


@pytest.mark.long
@pytest.mark.quick
@pytest.mark.parametrize("case", [*HELD, *DROPPED], ids=lambda case: case.name.replace(" ", "_"))
def test_a_walk_ends_as_it_must(case: KeepingCase) -> None:
    walk, good = run_keeping(case, limit_s=300)
    assert good, (walk.states, walk.broken, walk.trace)


def test_every_rule_is_dropped_once() -> None:
    assert sorted(case.dropped for case in DROPPED) == sorted(field.name for field in fields(KeepingRules))
