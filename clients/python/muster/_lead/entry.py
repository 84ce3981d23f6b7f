"""`lead` and `alead`: the leadership as a block, or a function that runs while this process leads."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias, Unpack, cast, overload

import grpc

from muster._blocked.naming import BlockNaming
from muster._cluster.cluster import Cluster
from muster._config import check_between
from muster._errors import LeadershipLost, SettingsError
from muster._lead.candidacy import Candidacy, LeadSettings, check_leadership
from muster._lead.leadership import Leadership
from muster._lead.term import BlockingTerm, Term
from muster._session.tls import TlsFiles
from muster._session.token import TokenFile
from muster._until_signal import first, run_until_signal
from muster._work.attempt import Attempt
from muster._work.policy import DRAIN_TIMEOUT_MS, LONGEST_MS, LOOP_BLOCK_WARN_MS, check_work

log = logging.getLogger("muster")

LeadWork: TypeAlias = Callable[[Term], Awaitable[object]] | Callable[[BlockingTerm], object]
"""An `async def` runs as a task that is cancelled, a plain `def` in a thread that is asked to stop."""


@overload
def lead(
    name: str,
    /,
    *,
    cluster: Cluster | None = None,
    servers: str | Sequence[str] | None = None,
    credentials: grpc.ChannelCredentials | TlsFiles | None = None,
    token_file: str | os.PathLike[str] | TokenFile | None = None,
    **settings: Unpack[LeadSettings],
) -> Leadership: ...


@overload
def lead(
    work: LeadWork,
    /,
    *,
    name: str,
    servers: str | Sequence[str] | None = None,
    credentials: grpc.ChannelCredentials | TlsFiles | None = None,
    token_file: str | os.PathLike[str] | TokenFile | None = None,
    drain_timeout_ms: int = DRAIN_TIMEOUT_MS,
    **settings: Unpack[LeadSettings],
) -> None: ...


def lead(what: str | LeadWork, /, *, name: str | None = None, **settings: Any) -> Leadership | None:
    """Leads: one process at a time among all that ask for the same name.

    `async with muster.lead("nightly-report") as term:` waits until this process leads and runs the block. At
    its end the leadership is given up, and another process leads at once. If the leadership is lost before,
    the block is cancelled, and `LeadershipLost` raised.

    `muster.lead(work, name="nightly-report")` calls `work` with the `Term` whenever this process leads, until
    it returns or raises, or SIGINT or SIGTERM comes; then the leadership is given up. When it is lost the
    work is cancelled, and called again when this process leads again. An `async def` runs as a task; any
    other function in a thread, with a `BlockingTerm`, whose `is_ending` asks it to stop.

    Candidates that come and go do not disturb the leader, and it keeps its `token`.

    Args:
        what: the name, or the function.
        name: of the leadership, at most 250 bytes, with a function.
        settings: `cluster` (with a name only): a connection to use, else there is one of its own; `servers`,
            `credentials` and `token_file`: see `Cluster`; `drain_timeout_ms` (with a function only): how long
            the work may take to end when it is lost or the program stops; and `LeadSettings`.

    Raises:
        LeadershipLost: see above; of a function only if it did not end within `drain_timeout_ms` after that.
        GroupError: the group of the leadership refuses the member.
        SettingsError: a setting is outside its limits.
        KeyboardInterrupt: a second signal came before everything had ended.
        BaseException: what the function raised, after the leadership was given up.
    """
    if isinstance(what, str):
        if name is not None:
            raise SettingsError("name", f"is given twice: {what!r} and {name!r}")
        own = {key: settings.pop(key, None) for key in ("cluster", "servers", "credentials", "token_file")}
        return Leadership(what, **own, settings=cast(LeadSettings, settings))
    if name is None:
        raise SettingsError("name", "is missing: muster.lead(work, name=...)")
    run_until_signal(lambda stop: alead(what, name=name, stop=stop, **settings))
    return None


async def alead(
    work: LeadWork,
    /,
    *,
    name: str,
    cluster: Cluster | None = None,
    servers: str | Sequence[str] | None = None,
    credentials: grpc.ChannelCredentials | TlsFiles | None = None,
    token_file: str | os.PathLike[str] | TokenFile | None = None,
    stop: asyncio.Event | None = None,
    drain_timeout_ms: int = DRAIN_TIMEOUT_MS,
    **settings: Unpack[LeadSettings],
) -> None:
    """`lead` with a function, for programs with an event loop of their own; ends when `stop` is set, too."""
    check_work(work, "term")
    check_leadership(name)
    check_between("drain_timeout_ms", drain_timeout_ms, 0, LONGEST_MS)
    stopping = stop or asyncio.Event()
    connected = (
        Cluster(servers, credentials=credentials, token_file=token_file)
        if cluster is None
        else nullcontext(cluster)
    )
    async with connected as connection:
        candidacy = Candidacy(connection, name, **settings)
        why = "the program stopped"
        with BlockNaming(LOOP_BLOCK_WARN_MS).watching():
            try:
                await first(candidacy.start(), stopping)
                while not stopping.is_set():
                    await first(candidacy.elected(), stopping)
                    term = candidacy.term
                    if term is not None and not stopping.is_set():
                        run = _Run(candidacy, term, work, drain_timeout_ms)
                        if await run.to_its_end(stopping):
                            why = "the work returned"
                            return
            except BaseException as error:
                why = f"the work ended: {type(error).__name__}"
                raise
            finally:
                if candidacy.is_working:  # cancelled once more while the work was to end
                    candidacy.begin_close("the program was stopped at once")
                else:
                    await candidacy.close(why)


class _Run:
    """The work of one term."""

    def __init__(self, candidacy: Candidacy, term: Term, work: LeadWork, drain_timeout_ms: int) -> None:
        self._candidacy = candidacy
        self._term = term
        self._drain_timeout_ms = drain_timeout_ms
        self._attempt = Attempt(work, term, f"muster-lead-{term.name}")

    async def to_its_end(self, stopping: asyncio.Event) -> bool:
        """Waits for the work; returns whether it returned by itself, and so ends the candidacy.

        Raises:
            LeadershipLost: it was lost, and the work did not end in time.
            BaseException: what the work raised.
        """
        attempt, term = self._attempt, self._term
        self._candidacy.begin(attempt.cancel)
        try:
            await first(asyncio.wait((attempt.task,)), stopping, term.lost)
        finally:
            held = term.is_leader and not stopping.is_set()
            try:
                in_time = await self._end()
            except asyncio.CancelledError:
                # Nobody else may lead before the work has ended.
                attempt.task.add_done_callback(lambda _: self._candidacy.done())
                raise
            self._candidacy.done()
        if not in_time and not stopping.is_set():
            raise LeadershipLost(term.name)
        if attempt.error is None:
            return held
        if held or not isinstance(attempt.error, Exception):
            raise attempt.error
        log.warning("leadership %r: the work raised after it was to end", term.name, exc_info=attempt.error)
        return False

    async def _end(self) -> bool:
        """Ends the work; returns False if that takes too long, and it is left."""
        attempt = self._attempt
        if attempt.task.done():
            return True
        attempt.cancel()
        _, late = await asyncio.wait((attempt.task,), timeout=self._drain_timeout_ms / 1_000)
        if not late:
            return True
        log.error(
            "leadership %r: the work did not end within drain_timeout_ms (%d) and is cut off; it stands at"
            "\n%s",
            self._term.name,
            self._drain_timeout_ms,
            attempt.stack(),
        )
        attempt.leave()
        return False
