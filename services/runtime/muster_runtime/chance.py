"""Chance that spreads processes over instances and moments; nothing secret comes of it."""

# ruff: noqa: S311  see above

import random


def one_of(count: int) -> int:
    """An index below a count."""
    return random.randrange(count)


def between(low: float, high: float) -> float:
    """A number between two others."""
    return random.uniform(low, high)
