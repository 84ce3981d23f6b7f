"""The model of doubts: an old file is never believed, who is back is judged, and each rule is needed."""

from dataclasses import fields

import pytest
from model.__main__ import run_doubts
from model.doubts import DoubtRules
from model.doubts_cases import DROPPED, HELD, DoubtCase


@pytest.mark.long
@pytest.mark.quick
@pytest.mark.parametrize("case", [*HELD, *DROPPED], ids=lambda case: case.name.replace(" ", "_"))
def test_a_walk_ends_as_it_must(case: DoubtCase) -> None:
    walk, good = run_doubts(case, limit_s=300)
    assert good, (walk.states, walk.broken, walk.trace)


def test_every_rule_is_dropped_once() -> None:
    assert sorted(case.dropped for case in DROPPED) == sorted(field.name for field in fields(DoubtRules))
