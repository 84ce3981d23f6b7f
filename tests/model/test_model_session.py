"""The model of a member's life: with all rules never two owners, and each rule is needed."""

import random
from dataclasses import fields

import pytest
from model.__main__ import run_session
from model.session import SessionModel, SessionRules, SessionState
from model.session_cases import DROPPED, HELD, RIDDEN, SessionCase

CASES = [*HELD, *RIDDEN, *DROPPED]


def named(case: SessionCase) -> str:
    return case.name.replace(" ", "_")


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_walk_ends_as_it_must(case: SessionCase) -> None:
    walk, good = run_session(case, limit_s=300)
    assert good, (walk.states, walk.broken, walk.trace)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=named)
def test_what_a_walk_leaves_out_of_a_state_matters_to_nothing_that_follows(case: SessionCase) -> None:
    model = SessionModel(case.rules, case.bounds, riding=case.riding)
    lives = random.Random(1)

    def seen(state: SessionState) -> tuple[str, list[tuple[str, SessionState]]]:
        return model.broken(state), [(label, model.canonical(after)) for label, after in model.steps(state)]

    for _ in range(100):
        state = model.initial()
        while following := list(model.steps(state)):
            assert seen(state) == seen(model.canonical(state))
            state = lives.choice(following)[1]


def test_every_rule_is_dropped_once() -> None:
    assert sorted(case.dropped for case in DROPPED) == sorted(field.name for field in fields(SessionRules))
