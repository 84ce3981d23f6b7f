"""Serves the lease streams of coordinators: renewals, and what a broken stream means."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence, Set
from dataclasses import dataclass, replace

import structlog
from muster_core.features import lacking
from muster_protos.limits import ID_MAX_BYTES
from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.v1 import discovery_pb2
from muster_runtime.addresses import Address

from muster_metadata.cluster.leases import LeaseRow
from muster_metadata.cluster.publisher import ViewPublisher
from muster_metadata.cluster.tables import Tables, next_run
from muster_metadata.log.upkeep import Upkeep
from muster_metadata.nodes.reply import Status
from muster_metadata.settings import LEASE_MAX_MS

log = structlog.get_logger()

MAX_FEATURES = 1_000
MAX_FEATURE_LENGTH = 63

_LISTENS_ON_MS = 500
_PROBE_PAUSE_MS = 20
_TRY_AGAIN_MS = 5_000
_OUR_OWN = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM}
)
"""Errors of a connection attempt that are this machine's own: they say nothing about the other one."""

_NO_SUCH_NAME = frozenset(
    getattr(socket, name) for name in ("EAI_NONAME", "EAI_NODATA") if hasattr(socket, name)
)
"""Lookup errors that mean that the name does not exist; all others are failures of the resolver."""


def request_problem(request: metadata_pb2.LeaseRequest, shard_count: int) -> str:
    """What is wrong with a request for a renewal; empty: nothing."""
    if not 1 <= len(request.node_id.encode()) <= ID_MAX_BYTES:
        return f"node_id must have 1 to {ID_MAX_BYTES} bytes"
    if not 1 <= len(request.session.encode()) <= ID_MAX_BYTES:
        return f"session must have 1 to {ID_MAX_BYTES} bytes"
    if not 1 <= len(request.host.encode()) <= ID_MAX_BYTES or not 1 <= request.port <= 65_535:
        return f"host must have 1 to {ID_MAX_BYTES} bytes and port must be 1 to 65535"
    if (
        len(request.internal_host.encode()) > ID_MAX_BYTES
        or request.internal_port > 65_535
        or bool(request.internal_host) != bool(request.internal_port)
    ):
        return (
            f"internal_host must have 1 to {ID_MAX_BYTES} bytes and internal_port must be 1 to 65535, or "
            "neither may be set"
        )
    if len(request.features) > MAX_FEATURES or any(
        len(name) > MAX_FEATURE_LENGTH for name in request.features
    ):
        return f"features must be at most {MAX_FEATURES} names of at most {MAX_FEATURE_LENGTH} characters"
    if request.lease_ms > LEASE_MAX_MS:
        return f"lease_ms must be at most {LEASE_MAX_MS}"
    if len(request.serving) > shard_count or any(row.shard >= shard_count for row in request.serving):
        return f"serving must name shards below {shard_count}, each once"
    return ""


def lacks(missing: Sequence[str], version: str) -> str:
    """The message to a server that is refused for the features it does not know."""
    return (
        f"the cluster has features enabled that this server (version {version or 'unknown'}) does not know; "
        f"run the version of the other servers, or a later one: {', '.join(missing)}"
    )


@dataclass(slots=True)
class _Stream:
    """One coordinator's stream.

    Attributes:
        row: its last renewal, set before it is sent to the nodes: if the process dies then, the renewal may
            be stored, and a death mark for the one before would be refused.
        reached: whether a connection to its address succeeded while the stream was open; None: not tried
            yet.
        trying: the attempt at a connection.
        tried_ms: when the last attempt began.
    """

    row: LeaseRow | None = None
    reached: bool | None = None
    trying: asyncio.Task[None] | None = None
    tried_ms: int = 0


class Leases:
    """Serves lease streams.

    Args:
        tables: stores the leases.
        view: gets every renewal at once.
        upkeep: adopts the logs of coordinators that moved here.
        features: returns the names of the enabled features.
        renew_timeout_ms: how long a renewal may take.
        probe_timeout_ms: how long a connection attempt may take after a stream broke.
        now_ms: boot clock.
    """

    def __init__(
        self,
        tables: Tables,
        view: ViewPublisher,
        upkeep: Upkeep,
        features: Callable[[], Set[str]],
        renew_timeout_ms: int,
        probe_timeout_ms: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._tables = tables
        self._view = view
        self._upkeep = upkeep
        self._features = features
        self._renew_timeout_ms = renew_timeout_ms
        self._probe_timeout_ms = probe_timeout_ms
        self._now_ms = now_ms
        self._probes: set[asyncio.Task[None]] = set()
        self._adopting: set[asyncio.Task[None]] = set()
        self.stopping = False

    async def stop(self) -> None:
        """Declares no coordinator dead from now on: it is this instance that ends the streams."""
        self.stopping = True
        tasks = [*self._probes, *self._adopting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def serve(
        self,
        requests: AsyncIterator[metadata_pb2.LeaseRequest],
        answer: Callable[[metadata_pb2.LeaseResponse], Awaitable[None]],
        shard_count: int,
        peer: str,
    ) -> None:
        """Renews until the stream ends; if it broke, finds out whether the coordinator died.

        Args:
            requests: what the coordinator asks for.
            answer: sends an answer.
            shard_count: of the cluster.
            peer: where the stream comes from, as gRPC says it.
        """
        stream = _Stream()
        over = False
        try:
            async for request in requests:
                if request.leave:
                    over = True
                    return
                problem = request_problem(request, shard_count)
                if problem or (stream.row is not None and request.node_id != stream.row.node_id):
                    text = problem or "one stream is for one coordinator"
                    await answer(metadata_pb2.LeaseResponse(number=request.number, message=text))
                    continue
                self._try_address(stream, request)
                response = await self._renew(stream, request, peer)
                over = response.superseded or (request.release and response.renewed)
                await answer(response)
                if over:
                    return
        finally:
            if stream.row is not None and not over and not self.stopping:
                self._begin(self._look_into(stream, stream.row))

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name="lease-probe")
        self._probes.add(task)
        task.add_done_callback(self._probes.discard)
        return task

    def _try_address(self, stream: _Stream, request: metadata_pb2.LeaseRequest) -> None:
        """Tries, while the stream shows that a process lives, whether its address can be reached at all."""
        now_ms = self._now_ms()
        if stream.reached or (stream.trying is not None and not stream.trying.done()):
            return
        if stream.reached is None or now_ms - stream.tried_ms >= _TRY_AGAIN_MS:
            stream.tried_ms = now_ms
            stream.trying = self._begin(self._try(stream, request.node_id, request.host, request.port))

    async def _try(self, stream: _Stream, node_id: str, host: str, port: int) -> None:
        try:
            await _connect(host, port, self._probe_timeout_ms)
        except (OSError, ValueError) as error:  # a host that is no name at all is a ValueError
            if stream.reached is None:
                reason = _verdict(error) if isinstance(error, OSError) else ""
                log.warning(
                    "coordinator_address_not_reached",
                    node_id=node_id, address=f"{host}:{port}", reason=reason or str(error),
                    meaning="its death will be noticed by its silence alone",
                )  # fmt: skip
            stream.reached = False
        else:
            stream.reached = True

    async def _renew(
        self, stream: _Stream, request: metadata_pb2.LeaseRequest, peer: str
    ) -> metadata_pb2.LeaseResponse:
        stored = stream.row
        taken: LeaseRow | None = None
        response = metadata_pb2.LeaseResponse(number=request.number)
        enabled = self._features()
        if not request.release and (missing := lacking(enabled, request.features)):
            response.message = lacks(missing, request.version)
            log.warning("coordinator_refused", node_id=request.node_id, reason=response.message)
            return response
        row = _first_row(request)
        if stored is None or stored.session != row.session:
            try:
                stored = await self._tables.lease(row.node_id, self._renew_timeout_ms)
            except TimeoutError:
                response.message = "no majority of the log's nodes answered"
                return response
            if stored is not None and stored.session != row.session:
                if 0 < request.run < stored.run:
                    return _superseded(response, stored)
                taken = stored
        if stored is not None and stored.session == row.session and _moved(stored, row):
            response.message = "this run of the process has named another address before"
            log.warning(
                "lease_refused",
                node_id=row.node_id, address=_address(row), before=_address(stored), peer=peer,
                reason=response.message,
            )  # fmt: skip
            return response
        stream.row = row = next_run(stored, row)
        status, ahead = await self._tables.renew(row, self._renew_timeout_ms)
        if status is Status.LOST and ahead:
            # Renewals through another instance got to a minority, with higher counters.
            stream.row = row = replace(row, counter=ahead + 1)
            status, _ = await self._tables.renew(row, self._renew_timeout_ms)
        if status is Status.SUPERSEDED:
            return _superseded(response, self._holder(row))
        if status is not Status.OK:
            response.message = "no majority of the log's nodes answered"
            return response
        _tell_taken(taken, row, peer)
        response.renewed = True
        response.run = row.run
        response.features.extend(sorted(enabled))
        self._view.observer.put(row, self._now_ms())
        self._view.refresh()
        for shard, epoch in row.serving:
            if not self._upkeep.knows(shard, epoch):
                self._adopt(shard, epoch)
        return response

    def _holder(self, row: LeaseRow) -> LeaseRow | None:
        """Another process of the same name, as far as it was seen here."""
        rows = (seen for seen, _ in self._view.observer.rows())
        return next(
            (seen for seen in rows if seen.node_id == row.node_id and seen.session != row.session), None
        )

    def _adopt(self, shard: int, epoch: int) -> None:
        if len(self._adopting) < 8:
            task = asyncio.create_task(self._upkeep.adopt(shard, epoch), name="log-adopt")
            self._adopting.add(task)
            task.add_done_callback(self._adopting.discard)

    async def _look_into(self, stream: _Stream, row: LeaseRow) -> None:
        """Declares a process dead at once if nothing listens at its address any more.

        The sockets of a dying process close one after the other, so a connection may still be accepted after
        its stream broke: the address is tried again for a while. An address that could not be reached before
        says nothing.
        """
        if stream.trying is not None:
            await stream.trying
        if not stream.reached:
            return
        until_ms = self._now_ms() + _LISTENS_ON_MS
        while not (verdict := await probe(row.host, row.port, self._probe_timeout_ms)):
            if self.stopping or self._now_ms() >= until_ms:
                return
            await asyncio.sleep(_PROBE_PAUSE_MS / 1000)
        if self.stopping:
            return
        log.info("coordinator_not_there", node_id=row.node_id, reason=verdict)
        # A process that still renews has a higher counter on a majority, which refuses the mark.
        until_ms = self._now_ms() + self._view.observer.lease_ms
        while (buried := await self._tables.bury(row, self._renew_timeout_ms)) is None:
            if self._now_ms() >= until_ms:
                return
            await asyncio.sleep(_PROBE_PAUSE_MS / 1000)
        if buried and not self.stopping:
            log.info("coordinator_died", node_id=row.node_id, reason=verdict)
            self._view.observer.put(replace(row, dead=True), self._now_ms())
            self._view.refresh()


def _superseded(response: metadata_pb2.LeaseResponse, holder: LeaseRow | None) -> metadata_pb2.LeaseResponse:
    response.superseded = True
    where = "" if holder is None else f", at {_address(holder)},"
    response.message = f"another process of this name{where} took the lease"
    return response


def _tell_taken(before: LeaseRow | None, row: LeaseRow, peer: str) -> None:
    if before is not None and not (before.released or before.dead):
        log.warning(
            "lease_taken",
            node_id=row.node_id, address=_address(row), before=_address(before), peer=peer,
            meaning="a later process has this name; one that runs at the address before ends",
        )  # fmt: skip


def _first_row(request: metadata_pb2.LeaseRequest) -> LeaseRow:
    """The row that a request asks for, without the number of its run and its counter."""
    return LeaseRow(
        node_id=request.node_id,
        session=request.session,
        run=0,
        counter=0,
        host=request.host,
        port=request.port,
        version=request.version[:ID_MAX_BYTES],
        draining=request.state == discovery_pb2.COORDINATOR_STATE_DRAINING,
        released=request.release,
        serving=tuple((served.shard, served.epoch) for served in request.serving),
        features=tuple(sorted(set(request.features))),
        lease_ms=request.lease_ms,
        catalog=request.catalog_offset if request.HasField("catalog_offset") else -1,
        catalog_epoch=request.catalog_epoch,
        internal_host=request.internal_host,
        internal_port=request.internal_port,
    )


def _moved(before: LeaseRow, row: LeaseRow) -> bool:
    """Whether a renewal names other addresses than the one before of the same run, which none does.

    An instance of an older version leaves the address for internal calls out of the row.
    """
    return (before.host, before.port) != (row.host, row.port) or (
        before.internal_port > 0
        and (before.internal_host, before.internal_port) != (row.internal_host, row.internal_port)
    )


def _address(row: LeaseRow) -> str:
    return str(Address(row.host, row.port))


async def probe(host: str, port: int, timeout_ms: int) -> str:
    """Why nothing listens at an address, in a word; empty: a connection succeeded, or nothing is known."""
    try:
        await _connect(host, port, timeout_ms)
    except TimeoutError:
        return "silent"
    except OSError as error:
        return _verdict(error)
    return ""


async def _connect(host: str, port: int, timeout_ms: int) -> None:
    """Connects and closes the connection.

    Raises:
        OSError: the connection failed, or took too long.
    """
    async with asyncio.timeout(timeout_ms / 1000):
        _, writer = await asyncio.open_connection(host, port)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _verdict(error: OSError) -> str:
    """What a failed attempt says about an address; empty: nothing, for it failed on this machine."""
    if isinstance(error, socket.gaierror):
        return "unreachable" if error.errno in _NO_SUCH_NAME else ""
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    return "" if error.errno in _OUR_OWN else "unreachable"
