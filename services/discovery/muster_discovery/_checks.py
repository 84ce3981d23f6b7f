"""Validates requests to discovery."""

from collections.abc import Sequence

from muster_protos.limits import NAME_RULE, TOPIC_NAMES_MAX, TOPIC_PARTITIONS_MAX, is_name
from muster_protos.muster.v1 import discovery_pb2
from muster_runtime.ids import id_problem
from muster_runtime.rpc.refusals import InvalidArgument, Violation

GROUP_IDS_MAX = 1_000
REQUEST_ID_MAX_BYTES = 255


def check_find(request: discovery_pb2.FindCoordinatorRequest) -> None:
    """Raises `InvalidArgument` if there are too many or too few keys, or one cannot be that of a group."""
    count = len(request.group_ids)
    if not 1 <= count <= GROUP_IDS_MAX:
        raise InvalidArgument(
            [Violation("group_ids", f"must have 1 to {GROUP_IDS_MAX:,} entries, has {count:,}")]
        )
    violations = [
        Violation(f"group_ids[{index}]", problem)
        for index, group_id in enumerate(request.group_ids)
        if (problem := id_problem(group_id))
    ]
    if len(request.seen_epochs) > count:
        violations.append(Violation("seen_epochs", "must have at most as many entries as group_ids"))
    if violations:
        raise InvalidArgument(violations)


def check_topic(topic: discovery_pb2.Topic) -> None:
    """Raises `InvalidArgument` if a topic's name or number of partitions is not acceptable."""
    violations = _name_violations("topic.name", topic.name)
    if not 1 <= topic.partitions <= TOPIC_PARTITIONS_MAX:
        violations.append(Violation("topic.partitions", f"must be from 1 to {TOPIC_PARTITIONS_MAX:,}"))
    if violations:
        raise InvalidArgument(violations)


def check_topic_name(name: str, field: str = "name") -> None:
    """Raises `InvalidArgument` if it cannot be the name of a topic."""
    violations = _name_violations(field, name)
    if violations:
        raise InvalidArgument(violations)


def check_request_id(request_id: str) -> None:
    """Raises `InvalidArgument` if the id of a change is too long."""
    if len(request_id.encode()) > REQUEST_ID_MAX_BYTES:
        raise InvalidArgument([Violation("request_id", f"must be at most {REQUEST_ID_MAX_BYTES} bytes long")])


def check_names(names: Sequence[str]) -> None:
    """Raises `InvalidArgument` if too many names are asked for, or one cannot be that of a topic."""
    if len(names) > TOPIC_NAMES_MAX:
        raise InvalidArgument([Violation("names", f"must have at most {TOPIC_NAMES_MAX:,} entries")])
    violations = [v for index, name in enumerate(names) for v in _name_violations(f"names[{index}]", name)]
    if violations:
        raise InvalidArgument(violations)


def _name_violations(field: str, name: str) -> list[Violation]:
    return [] if is_name(name) else [Violation(field, f"must be {NAME_RULE}")]
