"""G18: whom a member belongs to, and by which secret it is known, as the records of its life say."""

from collections.abc import Iterable, Sequence

from muster_protos.muster.log.v1 import records_pb2

from muster_core.audit.invariants import Findings
from muster_core.position import Position
from muster_core.state.group import Group


class BindingChecker:
    """Follows the identities and secrets of members.

    What a member has of these it keeps until it is gone. One that has none may get it: the cluster may have
    enabled the feature since it joined.

    Args:
        findings: where the results go.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._groups: dict[str, dict[str, records_pb2.Member]] = {}

    def begin_with(self, groups: Iterable[Group]) -> None:
        """Takes over the members that a snapshot holds."""
        for group in groups:
            self._keep(group.group_id, [member.to_record() for member in group.members.values()])

    def member_left(self, left: records_pb2.MemberLeft) -> None:
        """Forgets a member."""
        self._groups.get(left.group_id, {}).pop(left.member_id, None)

    def group_gone(self, group_id: str) -> None:
        """Forgets a group."""
        self._groups.pop(group_id, None)

    def generation_started(
        self, position: Position, message: records_pb2.GenerationStarted, rows: Sequence[records_pb2.Member]
    ) -> None:
        """Takes a generation with the records of its members."""
        self._findings.checked["G18"] += len(rows)
        before = self._groups.get(message.group_id)
        self._keep(message.group_id, rows)
        if before is None:
            return
        where = f"group {message.group_id!r}, generation {message.generation}"
        for row in rows:
            member_id = row.member_id
            known = before.get(member_id)
            if known is None:
                continue
            if known.identity not in ("", row.identity):
                self._of_another(position, where, known, row)
            if known.secret_hash not in (b"", row.secret_hash):
                self._findings.broke("G18", position, f"{where}: {member_id} has another secret than before")

    def group_reverted(self, message: records_pb2.GroupReverted) -> None:
        """Takes over the members of a group that is classic again; what they had before was compared."""
        self._keep(message.group_id, message.members)

    def member_replaced(self, position: Position, message: records_pb2.MemberReplaced) -> None:
        """Takes a new process of a static member."""
        members = self._groups.setdefault(message.group_id, {})
        old, new = members.pop(message.old_member_id, None), message.member
        self._findings.checked["G18"] += 1
        if old is not None and old.identity not in ("", new.identity):
            self._of_another(position, f"group {message.group_id!r}", old, new)
        if _is_bound(new):
            members[new.member_id] = new

    def _keep(self, group_id: str, rows: Iterable[records_pb2.Member]) -> None:
        """Remembers those members of a group that have something to keep; of most groups none does."""
        bound = {row.member_id: row for row in rows if _is_bound(row)}
        if bound:
            self._groups[group_id] = bound
        else:
            self._groups.pop(group_id, None)

    def _of_another(
        self, position: Position, where: str, before: records_pb2.Member, now: records_pb2.Member
    ) -> None:
        owner = repr(now.identity) if now.identity else "nobody"
        text = f"{where}: {now.member_id} belongs to {owner}, and {before.member_id} to {before.identity!r}"
        self._findings.broke("G18", position, text)


def _is_bound(row: records_pb2.Member) -> bool:
    """Whether a member belongs to somebody, or is known by a secret."""
    return bool(row.identity or row.secret_hash)
