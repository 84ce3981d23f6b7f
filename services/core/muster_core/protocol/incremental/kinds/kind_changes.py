"""ConvertGroup: an operator makes a group with members one of the other kind (docs/safety.md, INC-157)."""

from functools import partial

from muster_protos.muster.v1 import group_conversion_pb2
from muster_protos.muster.v1.group_conversion_pb2 import ConvertGroupRequest, ConvertGroupResponse, GroupKind

from muster_core import error_code
from muster_core.events import Request
from muster_core.features import Feature
from muster_core.protocol.context import ShardContext
from muster_core.protocol.generations import causes
from muster_core.protocol.incremental.kinds.conversions import Conversions
from muster_core.protocol.incremental.kinds.reversions import Reversions
from muster_core.state.group import Group

_NOT_ENABLED = (
    f"groups are converted with the feature {Feature.INCREMENTAL_GROUPS} (`muster features enable`)"
)
_NO_GROUP = "there is no such group"
_NO_KIND = "kind must be classic or incremental"
_NO_MEMBERS = "the group has no members; the first one that comes decides its kind"
_CLASSIC = group_conversion_pb2.GROUP_KIND_CLASSIC
_INCREMENTAL = group_conversion_pb2.GROUP_KIND_INCREMENTAL


class KindChanges:
    """Handles the call of operators.

    Args:
        context: the shard.
        conversions: of classic groups.
        reversions: of incremental ones.
    """

    def __init__(self, context: ShardContext, conversions: Conversions, reversions: Reversions) -> None:
        self._context = context
        self._conversions = conversions
        self._reversions = reversions

    def convert(self, call: Request, request: ConvertGroupRequest) -> None:
        """Answers when the log has it. The policy of the group, or of the cluster, does not count."""
        context = self._context
        group = context.groups.get(request.group_id)
        if Feature.INCREMENTAL_GROUPS not in context.features:
            context.refuse(call.call_id, error_code.UNSUPPORTED_VERSION, _NOT_ENABLED)
        elif request.kind not in (_CLASSIC, _INCREMENTAL):
            context.refuse(call.call_id, error_code.INVALID_REQUEST, _NO_KIND)
        elif group is None:
            context.refuse(call.call_id, error_code.GROUP_ID_NOT_FOUND, _NO_GROUP)
        elif not context.lines.call_in_line(group, call):
            self._convert(group, call, request)

    def _convert(self, group: Group, call: Request, request: ConvertGroupRequest) -> None:
        is_incremental = group.incremental is not None and bool(group.incremental.members)
        was: GroupKind.ValueType = _INCREMENTAL if is_incremental else _CLASSIC
        done = partial(self._answer, call, was, group.generation)
        fault = "" if group.has_members else _NO_MEMBERS
        if not fault and was == request.kind:
            done()
        elif not fault and is_incremental:
            fault = self._reversions.fault_of(group)
            cause = causes.reverted(self._context.now.wall_ms, None, request.reason)
            fault = fault or self._reversions.revert(group, cause, done, call)
        elif not fault:
            fault = self._conversions.fault_of(group)
            fault = fault or self._conversions.convert(group, done, call, request.reason)
        if fault:
            self._context.refuse(call.call_id, error_code.INCONSISTENT_GROUP_PROTOCOL, fault)

    def _answer(self, call: Request, was: GroupKind.ValueType, generation: int) -> None:
        answer = ConvertGroupResponse(was=was, generation=generation, shard_epoch=self._context.epoch)
        self._context.reply(call.call_id, answer)
