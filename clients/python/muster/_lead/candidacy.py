"""A process that wants to lead: a member of the leadership's group."""

import asyncio
import logging
from collections.abc import Callable
from typing import TypedDict, Unpack

from muster._cluster.cluster import Cluster
from muster._config import LONGEST_TIMEOUT_MS, MemberConfig, MemberProtocol, check_at_most
from muster._errors import MemberClosed, SettingsError
from muster._lead.assignor import GROUP_PREFIX, LEADER, NAME_MAX_BYTES, TOPIC
from muster._lead.term import Term
from muster._member.member import Member
from muster._until_signal import ensure_topic, first
from muster._values import TopicPartition

log = logging.getLogger("muster")

REBALANCE_TIMEOUT_MS = 300_000
"""How long a join phase waits, at least: longer than the session, so that a candidate that hangs ends before
it costs the leader its life."""


class LeadSettings(TypedDict, total=False):
    """Settings of a candidate as keyword arguments; see `MemberConfig` for what they mean."""

    client_id: str
    session_timeout_ms: int
    session: bool
    beat_interval_ms: int
    disconnect_grace_ms: int
    loop_block_limit_ms: int
    protocol: MemberProtocol | None
    heartbeat_interval_ms: int
    request_timeout_ms: int


class Candidacy:
    """Takes part in the group of a leadership, and makes a `Term` each time that it is given it.

    Args:
        cluster: the connection; it must outlive the candidacy.
        name: of the leadership.
        settings: see `LeadSettings`.

    Attributes:
        term: the present term; None: another process leads, or nobody.

    Raises:
        SettingsError: the name or a setting is outside its limits.
    """

    def __init__(self, cluster: Cluster, name: str, **settings: Unpack[LeadSettings]) -> None:
        check_leadership(name)
        config = check_settings(settings)
        session_timeout_ms = config.session_timeout_ms
        settings["protocol"] = config.protocol  # the assignor below is no wish of the user
        self.name = name
        self.term: Term | None = None
        self._on_lost: Callable[[], None] | None = None
        self._cluster = cluster
        self._elected = asyncio.Event()
        self._free = asyncio.Event()
        self._free.set()
        self._member = Member(
            cluster,
            group_id=GROUP_PREFIX + name,
            topics=TOPIC,
            on_partitions_assigned=self._assigned,
            on_partitions_revoked=self._revoked,
            on_partitions_lost=self._lost,
            assignors=None if config.protocol == "incremental" else [LEADER],
            rebalance_timeout_ms=min(max(REBALANCE_TIMEOUT_MS, 2 * session_timeout_ms), LONGEST_TIMEOUT_MS),
            **settings,
        )

    async def start(self) -> None:
        """Takes part from now on, once a server answers.

        Raises:
            TopicError: the topic of leaderships cannot be made.
        """
        await ensure_topic(self._cluster, TOPIC, 1)
        await self._member.start()

    async def elected(self) -> Term:
        """Waits until this process leads, and returns its term. Call `begin` before anything is awaited.

        Raises:
            MusterError: the member stopped by itself; why.
        """
        while self.term is None:
            await first(self._end_of_member(), self._elected)
        return self.term

    def begin(self, on_lost: Callable[[], None]) -> None:
        """Says that the work of the term begins: while it lasts the leadership is not given up.

        Args:
            on_lost: called when the term is lost; it is to end the work.
        """
        self._on_lost = on_lost
        self._free.clear()

    def done(self) -> None:
        """Says that the work of a term has ended: the leadership may go to another process."""
        self._on_lost = None
        self._free.set()

    @property
    def is_working(self) -> bool:
        """Whether the work of a term goes on."""
        return not self._free.is_set()

    def begin_close(self, reason: str) -> None:
        """Begins what `close` does, for who does not wait for it: it takes place when the work has ended."""
        self._member.begin_close(reason)

    async def close(self, reason: str) -> None:
        """Gives the leadership up, if it is held, and takes part no more. Call `done` before.

        Never raises for what servers or networks do.
        """
        await self._member.close(reason)

    async def _end_of_member(self) -> None:
        await self._member.wait()
        raise MemberClosed(f"the candidacy for {self.name!r} is closed")

    def _assigned(self, partitions: tuple[TopicPartition, ...]) -> None:
        if not partitions:
            return
        self.term = Term(self._member, self.name)
        self._elected.set()
        log.info("leadership %r: this process leads, with token %s", self.name, self.term.token)

    async def _revoked(self, _partitions: tuple[TopicPartition, ...]) -> None:
        self._end()
        await self._free.wait()

    def _lost(self, _partitions: tuple[TopicPartition, ...]) -> None:
        self._end()

    def _end(self) -> None:
        term, self.term = self.term, None
        self._elected.clear()
        if term is None:
            return
        term.lose()
        if self._on_lost is not None:
            log.warning("leadership %r: lost; its work is cancelled", self.name)
            self._on_lost()


def check_settings(settings: LeadSettings) -> MemberConfig:
    """Checks the settings of a candidate and returns what they make of a member's.

    Raises:
        SettingsError: a candidate has no such setting, or it is outside its limits.
    """
    if unknown := sorted(settings.keys() - LeadSettings.__annotations__.keys()):
        known = ", ".join(LeadSettings.__annotations__)
        raise SettingsError(unknown[0], f"a candidate has no such setting; it has {known}")
    return MemberConfig(**settings)


def check_leadership(name: str) -> str:
    """Checks the name of a leadership and returns it.

    Raises:
        SettingsError: it is empty, too long, or not valid UTF-8.
    """
    if not isinstance(name, str) or not name:
        raise SettingsError("name", f"must be text that is not empty, not {name!r}")
    return check_at_most("name", name, NAME_MAX_BYTES)
