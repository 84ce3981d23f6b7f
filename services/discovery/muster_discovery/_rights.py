"""What a caller of discovery may do."""

from itertools import islice
from typing import Any, NamedTuple

from muster_protos.muster.v1 import common_pb2, discovery_pb2
from muster_runtime.addresses import host_in_peer
from muster_runtime.loop_share import LoopShare
from muster_runtime.rpc.access.access import Access
from muster_runtime.rpc.access.calls import need_of
from muster_runtime.rpc.access.verbs import Kind
from muster_runtime.rpc.identity import current_identity
from muster_runtime.rpc.refusals import PermissionDenied
from muster_runtime.turns import Turns

NO_RIGHT = common_pb2.ERROR_CODE_TOPIC_AUTHORIZATION_FAILED

_SERVICE = discovery_pb2.DESCRIPTOR.services_by_name["CoordinatorDiscoveryService"].full_name

_TOPICS_AT_ONCE = 200
"""So many are looked at in half a millisecond."""
_TURN_S = 0.002
_LISTS_MAX = 16
"""Lists of all topics that are kept: one of ten thousand has a megabyte."""


def why_not(method: str) -> str:
    """What a caller is told who must not make a call."""
    return need_of(_SERVICE, method).refusal


class _List(NamedTuple):
    """All topics as a caller sees them.

    Attributes:
        whole: all of them.
        version: of the rights.
        seen: those that it sees.
    """

    whole: discovery_pb2.ListTopicsResponse
    version: int
    seen: discovery_pb2.ListTopicsResponse


class Rights:
    """Judges calls by the rights of who makes them.

    Args:
        access: the rights.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._turns = Turns()
        self._lists: dict[str, _List] = {}  # by the name of the caller, who asked last at the end

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
            raise PermissionDenied(why_not(method))

    async def seen(
        self, answer: discovery_pb2.ListTopicsResponse, *, is_whole: bool
    ) -> discovery_pb2.ListTopicsResponse:
        """A list of topics as the caller of now may see it; not to be changed.

        Of ten thousand that takes a fortieth of a second: it is done in turns of the loop, for one caller at
        a time, and what those see who asked last is kept (LIM-65).

        Args:
            answer: the list; that of all topics is the same one until they change.
            is_whole: whether it is that.
        """
        who = current_identity().name
        if not self._access.on or self._access.sees(who, Kind.TOPIC):  # without a name: all of them
            return answer
        if not is_whole:
            return await self._seen_by(who, answer)
        async with self._turns.turn(who):
            known = self._lists.pop(who, None)
            version = self._access.version
            if known is None or known.whole is not answer or known.version != version:
                known = _List(answer, version, await self._seen_by(who, answer))
            self._lists[who] = known
            if len(self._lists) > _LISTS_MAX:
                del self._lists[next(iter(self._lists))]
            return known.seen

    async def _seen_by(
        self, who: str, answer: discovery_pb2.ListTopicsResponse
    ) -> discovery_pb2.ListTopicsResponse:
        seen = discovery_pb2.ListTopicsResponse(catalog_version=answer.catalog_version)
        share = LoopShare()
        topics = iter(answer.topics)
        while some := list(islice(topics, _TOPICS_AT_ONCE)):
            seen.topics.extend(topic for topic in some if self._access.sees(who, Kind.TOPIC, topic.name))
            if share.taken_s > _TURN_S:
                await share.rest()
        return seen

    def changed(self, method: str, name: str, where: str, code: "common_pb2.ErrorCode.ValueType") -> None:
        """Tells in the trail that a topic was changed, or could not be."""
        errors = {f"topic:{name}": common_pb2.ErrorCode.Name(code)} if code else {}
        self._access.trail.done(method, [f"topic:{name}"], where, errors)

    def _refuses(self, method: str, name: str, context: Any) -> bool:
        if not self._access.on:
            return False
        need = need_of(_SERVICE, method)
        who = current_identity().name
        return not self._access.allows(who, need.verb, need.kind, name, host_in_peer(context.peer()))
