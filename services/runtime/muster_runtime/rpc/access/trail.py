"""The audit trail: who did what of consequence from where, and what was refused, as events of the log."""

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

import structlog

from muster_runtime.logs import ITEMS_MAX
from muster_runtime.rpc.access.keeper import Keeper
from muster_runtime.rpc.identity import Identity, current_identity

LOGGER = "muster.audit"
"""Every event of the trail has it as `logger`."""

BURST = 20
"""Refusals of one identity that are recorded one by one; of all together:"""
BURST_OF_ALL = 1_000
EVERY_S = 10.0
"""After a burst one is recorded so often, with how many were not; of all together:"""
EVERY_S_OF_ALL = 0.1
IDENTITIES_MAX = 1_024
LISTED_MAX = 1_000
"""Of what a call did in more places, that of the first ones is told, and their number.

A line has `ITEMS_MAX` of them; further ones are in further lines."""
_UNKNOWN = frozenset({"ERROR_CODE_COORDINATOR_NOT_AVAILABLE"})
"""Errors of calls that may be carried out all the same, after their answer."""

log = structlog.get_logger()


class _Allowance:
    """How many events may be recorded: a burst, and then one at intervals."""

    __slots__ = ("_burst", "_every_s", "_left", "_since_s", "untold")

    def __init__(self, burst: int, every_s: float, now_s: float) -> None:
        self._burst = burst
        self._every_s = every_s
        self._left = float(burst)
        self._since_s = now_s
        self.untold = 0

    def take(self, now_s: float) -> bool:
        """Takes one, if one more may be recorded; returns whether it may."""
        self._left = min(self._burst, self._left + (now_s - self._since_s) / self._every_s)
        self._since_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Trail:
    """Records calls of consequence, with the identity of the current caller.

    What was refused or failed is recorded one by one up to a bound for each identity and for all, so that
    nobody fills a disk with such calls; the next one that is recorded says how many were not.

    Args:
        now_s: a clock that never goes back.

    Attributes:
        keeper: what keeps the events in the cluster's log, too; None: nothing does.
    """

    def __init__(self, now_s: Callable[[], float] = monotonic) -> None:
        self.keeper: Keeper | None = None
        self._now_s = now_s
        self._all = _Allowance(BURST_OF_ALL, EVERY_S_OF_ALL, now_s())
        self._of: dict[str, _Allowance] = {}

    def done(
        self,
        action: str,
        what: Sequence[str],
        where: str,
        errors: dict[str, str],
        who: Identity | None = None,
        reason: str = "",
    ) -> None:
        """Records the answer to a call that changes or ends what others use.

        Args:
            action: the call, or what it does.
            what: with what, as `group:orders`.
            where: the address that it came from.
            errors: what of it was not done, with the name of the error.
            who: made it; absent: the caller of now.
            reason: why, as the caller says; empty: it does not.
        """
        caller = current_identity() if who is None else who
        is_done = len(errors) < len(what)
        is_unknown = not is_done and not _UNKNOWN.isdisjoint(errors.values())
        outcome = "done" if is_done else "unknown" if is_unknown else "failed"
        if self.keeper is not None and outcome == "failed":
            why = ", ".join(sorted(set(errors.values())))
            self.keeper.gather_each(outcome, action, caller.name, caller.proof.value, what, where, why)
        elif self.keeper is not None:
            self.keeper.done(action, caller.name, caller.proof.value, what, where, reason, errors, outcome)
        if is_done:
            self._tell(caller, action, what, where, outcome, reason=reason, errors=errors)
            return
        # Counted apart: with failures, which cost nothing, nobody hides what may be done.
        untold = self._told_before(f"{caller.name}\0" if is_unknown else caller.name)
        if untold is not None:
            self._tell(caller, action, what, where, outcome, reason=reason, errors=errors, untold=untold)

    def refused(self, action: str, what: str, where: str, why: Callable[[], str]) -> None:
        """Records that a call, or a part of one, was refused.

        Args:
            action: what it would have done.
            what: with what, as `group:orders`.
            where: the address that it came from; empty: not known.
            why: says why, for people; called only if the refusal is recorded.
        """
        caller = current_identity()
        if self.keeper is not None:
            self.keeper.gather("refused", action, caller.name, caller.proof.value, what, where, why)
        if (untold := self._told_before(caller.name)) is not None:
            self._tell(caller, action, [what], where, "refused", reason=why(), untold=untold)

    def more_refused(self, action: str, what: str, where: str, number: int) -> None:
        """Records that so many more things of a call were refused; see `refused`."""
        caller, reason = current_identity(), f"{number:,} more that the call names"
        if self.keeper is not None:
            self.keeper.gather(
                "refused", action, caller.name, caller.proof.value, what, where, lambda: reason, number
            )
        if (untold := self._told_before(caller.name, number)) is not None:
            self._tell(caller, action, [what], where, "refused", reason=reason, untold=untold)

    def foreign(self, group_id: str, member: str, who: str, where: str) -> None:
        """Records that a call was refused because its member belongs to another identity.

        Args:
            group_id: the group.
            member: id of the member, or its instance id.
            who: name of the caller's identity; the call may be played in the task of another one.
            where: the address that it came from; empty: not known.
        """
        self._spoke_for(group_id, member, who, where, "the member belongs to another identity")

    def unproven(self, group_id: str, member: str, who: str, where: str) -> None:
        """Records that a call did not bring the secret of its member; see `foreign`."""
        self._spoke_for(group_id, member, who, where, "the call does not bring the secret of the member")

    def _spoke_for(self, group_id: str, member: str, who: str, where: str, reason: str) -> None:
        what = f"member:{group_id}/{member}"
        if self.keeper is not None:
            self.keeper.gather("refused", "act", who, "", what, where, lambda: reason)
        if (untold := self._told_before(who)) is not None:
            self._log("act", who, [what], where, "refused", reason=reason, untold=untold)

    def rules_changed(self, file: str, digest: str, rules: int) -> None:
        """Records that the file of rights has changed, and other rules are in force."""
        if self.keeper is not None:
            told = f"{rules} rules, SHA-256 {digest}"
            self.keeper.done("rules_changed", "", "", [f"rules:{rules}"], file, told, {})
        self._log("rules_changed", "", [f"rules:{rules}"], file, "done", sha256=digest)

    def _told_before(self, who: str, number: int = 1) -> int | None:
        """How many events of an identity were not recorded since the last one; None: nor are these."""
        now_s = self._now_s()
        allowance = self._of.get(who)
        if allowance is None:
            if len(self._of) >= IDENTITIES_MAX:
                del self._of[next(iter(self._of))]
            allowance = self._of[who] = _Allowance(BURST, EVERY_S, now_s)
        if not allowance.take(now_s) or not self._all.take(now_s):
            allowance.untold += number
            return None
        untold, allowance.untold = allowance.untold, 0
        return untold

    def _tell(
        self, caller: Identity, action: str, what: Sequence[str], where: str, outcome: str, **more: Any
    ) -> None:
        self._log(action, caller.name, what, where, outcome, proof=caller.proof.value, **more)

    @staticmethod
    def _log(action: str, who: str, what: Sequence[str], where: str, outcome: str, **more: Any) -> None:
        told = {name: value for name, value in more.items() if value}
        errors: Mapping[str, str] = told.pop("errors", {})
        if len(what) > LISTED_MAX:
            what = [*what[:LISTED_MAX], f"… ({len(what):,})"]
        for begin in range(0, max(len(what), 1), ITEMS_MAX):  # a line would leave out what is more
            part = what[begin : begin + ITEMS_MAX]
            failed = {one: errors[one] for one in part if one in errors}
            log.info(
                "audit",
                logger=LOGGER,
                action=action,
                who=who,
                what=part,
                where=where,
                outcome=outcome,
                **told,
                **({"errors": failed} if failed else {}),
                **({"of": len(what)} if len(what) > ITEMS_MAX else {}),
            )
