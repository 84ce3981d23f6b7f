"""AlterGroupSettings: what is set for a group is stored, and what depends on it follows at once."""

from functools import partial

from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1.group_settings_pb2 import (
    AlterGroupSettingsRequest,
    AlterGroupSettingsResponse,
    GroupSettings,
)

from muster_core import error_code
from muster_core.events import Request
from muster_core.features import Feature
from muster_core.incremental import causes
from muster_core.incremental.decisions.decision import Decision
from muster_core.incremental.decisions.upkeep import tend
from muster_core.protocol.context import ShardContext
from muster_core.protocol.incremental.kinds.conversions import Conversions
from muster_core.protocol.incremental.settings import assignors_of, may_hold
from muster_core.protocol.incremental.targets import Targets
from muster_core.protocol.incremental.topics import topics_of
from muster_core.state.group import Group
from muster_core.state.group_settings import altered, fault_of

_NOT_ENABLED = f"settings of groups need the feature {Feature.GROUP_SETTINGS} (`muster features enable`)"
_NO_GROUP = "there is no such group, so nothing is set for it"


class SettingsChanges:
    """Handles changes of what is set for groups.

    Args:
        context: the shard.
        conversions: of classic groups, which a group's settings may begin or end.
        targets: how targets come about.
    """

    def __init__(self, context: ShardContext, conversions: Conversions, targets: Targets) -> None:
        self._context = context
        self._conversions = conversions
        self._targets = targets

    def alter(self, call: Request, request: AlterGroupSettingsRequest) -> None:
        """Answers when the log has what is set (docs/safety.md, INC-120)."""
        context = self._context
        group = context.groups.get(request.group_id)
        if Feature.GROUP_SETTINGS not in context.features:
            context.refuse(call.call_id, error_code.UNSUPPORTED_VERSION, _NOT_ENABLED)
        elif group is not None:
            if not context.lines.call_in_line(group, call):
                self._alter(group, call, request)
        elif not request.set.ListFields():
            context.refuse(call.call_id, error_code.GROUP_ID_NOT_FOUND, _NO_GROUP)
        elif full := context.too_many_new_groups():
            context.refuse(call.call_id, error_code.COORDINATOR_NOT_AVAILABLE, full)
        else:
            group = Group(request.group_id, context.now.wall_ms, context.config.history_length)
            context.add_unstored(group)
            self._alter(group, call, request)

    def _alter(self, group: Group, call: Request, request: AlterGroupSettingsRequest) -> None:
        context = self._context
        before, after = group.settings, altered(group.settings, request)
        if fault := fault_of(after, context.config, context.room.assignors):
            context.forget_unstored(group)
            context.refuse(call.call_id, error_code.INVALID_CONFIG, fault)
        elif after == before:
            context.forget_unstored(group)
            self._answer(group, call)
        else:
            record = context.record()
            record.critical = True
            record.group_settings_altered.group_id = group.group_id
            record.group_settings_altered.settings.CopyFrom(after)
            records = [record, *self._what_follows(group, before, after)]
            context.append(records, partial(self._altered, group, call), holds=group, calls=[call.call_id])

    def _what_follows(
        self, group: Group, before: GroupSettings, after: GroupSettings
    ) -> list[records_pb2.Record]:
        """Another assignor assigns anew, and so does the end of a hold (INC-123, INC-124, INC-173)."""
        context, incremental = self._context, group.incremental
        changed = [name for name in ("assignor", "hold") if getattr(before, name) != getattr(after, name)]
        ends = incremental is not None and incremental.holds_moves and not may_hold(after)
        if ends and "hold" not in changed:
            changed.append("hold")
        if incremental is None or not incremental.members or not changed:
            return []
        if changed == ["hold"] and after.hold:
            return []
        decision = Decision(incremental, group.group_id, context.record, context.catalog.removed)
        if ends:
            decision.end_hold()
        decision.raise_epoch(causes.settings_changed(changed, context.now.wall_ms), incremental.topics_hash)
        assignors = assignors_of(context.room.assignors, after)
        tend(decision, topics_of(context.catalog), assignors, partial(self._targets.when, group))
        return decision.records

    def _altered(self, group: Group, call: Request) -> None:
        self._conversions.follow(group)
        self._targets.shorten_pause(group)
        self._answer(group, call)

    def _answer(self, group: Group, call: Request) -> None:
        answer = AlterGroupSettingsResponse(settings=group.settings, shard_epoch=self._context.epoch)
        self._context.reply(call.call_id, answer)
