"""What is wrong with a heartbeat by itself, or for its caller and its group: it is refused undecided."""

from muster_protos.muster.v1.incremental_pb2 import ConsumerGroupHeartbeatRequest

from muster_core import error_code
from muster_core.events import Request, StreamPlace
from muster_core.features import Feature
from muster_core.incremental.decisions.request import JOIN, Refused
from muster_core.incremental.decisions.request_faults import fault_of
from muster_core.protocol.context import ShardContext
from muster_core.protocol.incremental.expressions import ExpressionSearch
from muster_core.protocol.incremental.kinds.reversions import Reversions
from muster_core.protocol.incremental.stream_members import StreamMembers
from muster_core.state.group import Group

NO_GROUP = "there is no incremental group of this name"
_IS_CLASSIC = "the group is a classic one and has members"
_UNPROVABLE = "member_secret is empty: nobody joins without one here (MUSTER_GROUP_REQUIRE_MEMBER_SECRETS)"
_HIDDEN = "topic_regex matches a topic that the caller must not see (`muster access check` explains)"


class HeartbeatChecks:
    """Refuses heartbeats before anything is decided; what a decision refuses is in `incremental.decisions`.

    Args:
        context: the shard.
        streams: which members are on streams.
        reversions: know who was a member before the group was classic again.
        expressions: know what the group's expressions match.
    """

    def __init__(
        self,
        context: ShardContext,
        streams: StreamMembers,
        reversions: Reversions,
        expressions: ExpressionSearch,
    ) -> None:
        self._context = context
        self._streams = streams
        self._reversions = reversions
        self._expressions = expressions

    def check(self, request: ConsumerGroupHeartbeatRequest, place: StreamPlace | None) -> None:
        """What is looked at before any group.

        Raises:
            Refused: it is not well.
        """
        context = self._context
        if Feature.INCREMENTAL_GROUPS not in context.features:
            text = f"incremental groups need the feature {Feature.INCREMENTAL_GROUPS}"
            raise Refused(error_code.UNSUPPORTED_VERSION, text)
        if place is not None and not (request.member_seq and place.connection):
            text = "on a session a heartbeat names its join, and a connection from 1"
            raise Refused(error_code.INVALID_REQUEST, text)
        if fault := fault_of(request, context.room.assignors):
            raise Refused(error_code.INVALID_REQUEST, fault)
        low_ms, high_ms = context.config.min_session_timeout_ms, context.config.max_session_timeout_ms
        if request.session_timeout_ms and not low_ms <= request.session_timeout_ms <= high_ms:
            text = f"session_timeout_ms must be 0, or {low_ms} to {high_ms}"
            raise Refused(error_code.INVALID_SESSION_TIMEOUT, text)

    def check_in_group(self, call: Request, group: Group, request: ConsumerGroupHeartbeatRequest) -> None:
        """What is looked at when it is the request's turn in its group.

        Raises:
            Refused: the caller is not who it says, or the group does not take it.
        """
        self._check_secret(call, group, request)
        self._streams.check(call, request)
        self._check_kind(group, request)
        self._check_expression(call, group, request)

    def _check_secret(self, call: Request, group: Group, request: ConsumerGroupHeartbeatRequest) -> None:
        """Who knows the id of a member cannot speak for it (docs/safety.md, SES-39).

        Raises:
            Refused: the secret is another one, or needed and missing.
        """
        context = self._context
        if context.proven_id(group, request, call) != request.member_id:
            raise Refused(error_code.UNKNOWN_MEMBER_ID, "the group has no such member; join it")
        is_needed = context.config.require_member_secrets and context.keeps_secrets
        if is_needed and request.member_epoch == JOIN and not request.member_secret:
            raise Refused(error_code.INVALID_REQUEST, _UNPROVABLE)

    def _check_kind(self, group: Group, request: ConsumerGroupHeartbeatRequest) -> None:
        """Whether a group has, or can have, members of this kind.

        Raises:
            Refused: it cannot.
        """
        incremental = group.incremental
        if incremental is None:
            self._reversions.check_kind(group, request)
        if incremental is None and request.member_epoch != JOIN:
            raise Refused(error_code.GROUP_ID_NOT_FOUND, NO_GROUP)
        # classic members may be in no record yet, also in a group that was incremental until now
        has_classic = not group.is_vacant or group.members or group.pending_members
        if has_classic and (incremental is None or not incremental.members):
            raise Refused(error_code.GROUP_ID_NOT_FOUND, _IS_CLASSIC)

    def _check_expression(self, call: Request, group: Group, request: ConsumerGroupHeartbeatRequest) -> None:
        """Who comes to an expression may see what it matches (docs/safety.md, INC-52).

        Raises:
            Refused: it may not.
        """
        incremental = group.incremental
        if incremental is not None and self._expressions.hides(
            incremental, request.topic_regex, call.identity
        ):
            raise Refused(error_code.TOPIC_AUTHORIZATION_FAILED, _HIDDEN)
