"""The assignors of incremental groups, as a coordinator hands them to its shards, and its work aside."""

from muster_coordinator.assignment.answers import answer_to
from muster_coordinator.assignment.assignors import SERVER_ASSIGNORS
from muster_coordinator.assignment.expressions import Re2Expressions

__all__ = ["SERVER_ASSIGNORS", "Re2Expressions", "answer_to"]
