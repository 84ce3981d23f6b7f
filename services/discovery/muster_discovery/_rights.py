"""What a caller of discovery may do."""

from typing import Any

from muster_protos.muster.v1 import common_pb2, discovery_pb2
from muster_runtime.rpc.access.access import Access
from muster_runtime.rpc.access.calls import need_of
from muster_runtime.rpc.access.verbs import Kind
from muster_runtime.rpc.identity import current_identity
from muster_runtime.rpc.refusals import PermissionDenied

NO_RIGHT = common_pb2.ERROR_CODE_TOPIC_AUTHORIZATION_FAILED
NO_GROUP = "no rule allows the caller to describe this group (`muster access check` explains)"
NO_TOPIC = "no rule allows the caller this with the topic (`muster access check` explains)"

_SERVICE = discovery_pb2.DESCRIPTOR.services_by_name["CoordinatorDiscoveryService"].full_name


class Rights:
    """Judges calls by the rights of who makes them.

    Args:
        access: the rights.
    """

    def __init__(self, access: Access) -> None:
        self._access = access

    def refuses_group(self, group_id: str, context: Any) -> bool:
        """Whether the caller of now must not learn who serves a group."""
        return self._refuses("FindCoordinator", group_id, context)

    def refuses_topic(self, method: str, name: str, context: Any) -> bool:
        """Whether the caller of now must not make a call about a topic."""
        return self._refuses(method, name, context)

    def check_cluster(self, method: str, context: Any) -> None:
        """Refuses a call about the cluster that the caller of now must not make.

        Raises:
            PermissionDenied: it must not.
        """
        if self._refuses(method, "", context):
            raise PermissionDenied(
                f"no rule allows the caller {method} of the cluster (`muster access check` explains)"
            )

    def seen(self, answer: discovery_pb2.ListTopicsResponse) -> discovery_pb2.ListTopicsResponse:
        """A list of topics as the caller of now may see it."""
        if not self._access.on:
            return answer
        who = current_identity().name
        topics = [topic for topic in answer.topics if self._access.sees(who, Kind.TOPIC, topic.name)]
        return discovery_pb2.ListTopicsResponse(topics=topics, catalog_version=answer.catalog_version)

    def changed(self, method: str, name: str, where: str, code: "common_pb2.ErrorCode.ValueType") -> None:
        """Tells in the trail that a topic was changed, or could not be."""
        errors = {f"topic:{name}": common_pb2.ErrorCode.Name(code)} if code else {}
        self._access.trail.done(method, [f"topic:{name}"], where, errors)

    def _refuses(self, method: str, name: str, context: Any) -> bool:
        if not self._access.on:
            return False
        need = need_of(_SERVICE, method)
        who = current_identity().name
        return not self._access.allows(who, need.verb, need.kind, name, context.peer())
