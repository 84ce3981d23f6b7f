"""`async with muster.lead(name)`: a block that runs while this process leads."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType

import grpc

from muster._cluster.cluster import Cluster
from muster._errors import LeadershipLost, MemberClosed
from muster._lead.candidacy import Candidacy, LeadSettings, check_leadership, check_settings
from muster._lead.term import Term
from muster._session.tls import TlsFiles
from muster._session.token import TokenFile


class Leadership:
    """Waits at its beginning until this process leads, and gives the leadership up at its end.

    If the leadership is lost meanwhile, the block is cancelled and `LeadershipLost` raised at its end. An
    error of the block's own is raised as it is. Use it once.

    Args:
        name: of the leadership.
        cluster: a connection to use; None: one of its own.
        servers: see `Cluster`.
        credentials: see `Cluster`.
        token_file: see `Cluster`.
        settings: see `LeadSettings`.
    """

    def __init__(
        self,
        name: str,
        *,
        cluster: Cluster | None,
        servers: str | Sequence[str] | None,
        credentials: grpc.ChannelCredentials | TlsFiles | None,
        token_file: str | os.PathLike[str] | TokenFile | None,
        settings: LeadSettings,
    ) -> None:
        self.name: str = check_leadership(name)
        self._cluster = cluster
        self._servers = servers
        self._credentials = credentials
        self._token_file = token_file
        self._settings = settings
        check_settings(settings)
        self._stack = AsyncExitStack()
        self._candidacy: Candidacy | None = None
        self._term: Term | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelled_before = 0
        self._cancelled = False

    async def __aenter__(self) -> Term:
        """Waits, without a limit, until this process leads.

        Raises:
            GroupError: the group of the leadership refuses the member.
            SettingsError: a setting is outside its limits.
            MemberClosed: it was used before.
        """
        if self._candidacy is not None:
            raise MemberClosed("a leadership is asked for once; call muster.lead again")
        async with self._stack as stack:
            cluster = self._cluster
            if cluster is None:
                cluster = Cluster(self._servers, credentials=self._credentials, token_file=self._token_file)
                await stack.enter_async_context(cluster)
            candidacy = self._candidacy = Candidacy(cluster, self.name, **self._settings)
            stack.push_async_callback(candidacy.close, "the program no longer wants to lead")
            await candidacy.start()
            self._term = await candidacy.elected()
            self._task = asyncio.current_task()
            assert self._task is not None
            self._cancelled_before = self._task.cancelling()
            candidacy.begin(self._cancel)
            self._stack = stack.pop_all()
        return self._term

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._candidacy is not None
        assert self._term is not None
        lost = not self._term.is_leader
        self._candidacy.done()
        async with self._stack:
            ours = await self._take_cancel_back(kind)
            if lost and (kind is None or (ours and kind is asyncio.CancelledError)):
                raise LeadershipLost(self.name) from error

    def _cancel(self) -> None:
        assert self._task is not None
        self._cancelled = True
        self._task.cancel(f"leadership {self.name!r} was lost")

    async def _take_cancel_back(self, kind: type[BaseException] | None) -> bool:
        """Undoes the cancellation of a lost leadership; returns whether nobody else cancelled the task."""
        assert self._task is not None
        if not self._cancelled:
            return False
        others = self._task.uncancel() > self._cancelled_before
        if kind is not asyncio.CancelledError:
            # The block ended before it was cancelled, or took no notice: what is still to come must not hit
            # the code after it.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if others:
                    raise
        return not others
