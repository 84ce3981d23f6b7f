"""What a member says of itself in the log: one line for each event, with what it is about and why."""

import logging
from collections.abc import Collection

from muster._config import MemberConfig
from muster._messages import in_words
from muster._standing.standing import Standing
from muster._text import harmless
from muster._values import TopicPartition

log = logging.getLogger("muster")


class Chronicle:
    """Logs the life of one member.

    Args:
        group_id: its group.
        config: its settings.
        standing: its state.
    """

    def __init__(self, group_id: str, config: MemberConfig, standing: Standing) -> None:
        self._group_id = group_id
        self._config = config
        self._standing = standing
        self._joined_as = ""
        self._had: frozenset[TopicPartition] = frozenset()

    def joined(self) -> None:
        """It has a seat; said once for each id."""
        seat = self._standing.seat
        if seat.member_id != self._joined_as:
            self._joined_as = seat.member_id
            log.info("group %r: joined as %s, generation %d", self._group_id, seat.member_id, seat.generation)

    def assigned(self, owned: Collection[TopicPartition]) -> None:
        """It has an assignment: what it has, what of it came and what went, and why."""
        standing = self._standing
        before, self._had = self._had, frozenset(owned)
        moved = {"came": self._had - before, "went": before - self._had} if before else {}
        cause = standing.cause
        log.info(
            "group %r: %s has %s in generation %d%s%s",
            self._group_id,
            standing.seat.member_id,
            in_words(owned),
            standing.seat.generation,
            "".join(f", {in_words(some)} {how}" for how, some in moved.items() if some),
            f"; it rebalanced because: {harmless(cause.sentence or cause.reason)}" if cause else "",
        )

    def given(self, came: Collection[TopicPartition]) -> None:
        """It begins with what its coordinator gives it: what it has now, what of it came, and why."""
        standing = self._standing
        cause = standing.cause
        log.info(
            "group %r: %s has %s in epoch %d%s%s",
            self._group_id,
            standing.seat.member_id,
            in_words(standing.owned),
            standing.seat.generation,
            f", {in_words(came)} came" if len(came) < len(standing.owned) else "",
            f"; its list changed because: {harmless(cause.sentence or cause.reason)}" if cause else "",
        )

    def gives_back(self, some: Collection[TopicPartition]) -> None:
        """It stops what its coordinator takes, and why that is taken."""
        cause = self._standing.cause
        why = f", because: {harmless(cause.sentence or cause.reason)}" if cause else ""
        log.info(
            "group %r: %s gives back %s%s", self._group_id, self._standing.seat.member_id, in_words(some), why
        )

    def lost(self, some: Collection[TopicPartition], why: str, *, too_late: bool) -> None:
        """It lost some of what it had.

        Args:
            some: what.
            why: what the coordinator said; empty: nothing.
            too_late: whether it could not stop it in the time that it had for that.
        """
        late = "it did not stop within rebalance_timeout_ms"
        reason = late if too_late else harmless(why) or self._why_over()
        if why and self._standing.life.blocked_too_long:
            reason = f"{self._why_over()}; {reason}"
        log.warning("group %r: %s; %s: partitions are lost", self._group_id, reason, in_words(some))

    def life_is_over(self) -> None:
        """It lost what it owned, for nobody acknowledged its beats."""
        owned = in_words(self._standing.owned)
        log.warning("group %r: %s; %s: partitions are lost", self._group_id, self._why_over(), owned)

    def life_goes_on(self) -> None:
        """A coordinator knows it after all."""
        log.info(
            "group %r: the coordinator knows %s; %s: partitions are its own",
            self._group_id,
            self._standing.seat.member_id,
            in_words(self._standing.owned),
        )

    def joins_again(self, had: Collection[TopicPartition], *, keeps: bool, lost: bool, why: str) -> None:
        """It leaves its seat for the next generation, or as another member.

        Args:
            had: what it had.
            keeps: whether it goes on working on it.
            lost: whether it is too late to give that up.
            why: the order that it follows.
        """
        why = harmless(why)
        if lost and self._standing.life.blocked_too_long:
            why = f"{self._why_over()}; {why}"
        log.log(
            logging.WARNING if lost and self._standing.holding and had else logging.INFO,
            "group %r: %s %s; joining again: %s",
            self._group_id,
            "lost" if lost else "keeping" if keeps else "giving up",
            in_words(had),
            why,
        )

    def _why_over(self) -> str:
        """Why the life is over, as a part of a sentence."""
        life = self._standing.life
        if life.blocked_too_long:
            limit_ms = self._config.block_limit_ms
            return f"the event loop was blocked for longer than {limit_ms} ms (loop_block_limit_ms)"
        return f"nothing heard from a coordinator for {life.span_ms} ms"
