"""What a piece of work comes to; pure, and the same in every process."""

from muster_core.events import Assign, Assigned, Resolved, Work
from muster_core.incremental.targets.target import changes_of

from muster_coordinator.assignment.assignors import SERVER_ASSIGNORS
from muster_coordinator.assignment.expressions import matched


def answer_to(work: Work) -> Assigned | Resolved:
    """Does it.

    Raises:
        Exception: whatever an assignor raises.
    """
    if isinstance(work, Assign):
        answer = SERVER_ASSIGNORS[work.server_assignor](work.question)
        return Assigned(work.group_id, work.number, changes_of(work.question, answer))
    return Resolved(work.group_id, work.number, matched(work.expressions, work.names))


def no_answer_to(work: Work) -> Assigned | Resolved:
    """What is said where it could not be done."""
    kind = Assigned if isinstance(work, Assign) else Resolved
    return kind(work.group_id, work.number, None)
