"""`muster access trail`: the audit trail as the cluster's log keeps it."""

import asyncio
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
from muster_coordinator.settings import CoordinatorSettings
from muster_discovery.settings import DiscoverySettings
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc
from muster_runtime.addresses import parse_addresses
from muster_runtime.rpc.channels import open_channel
from muster_runtime.rpc.trust.trust import Trust

from muster_server._unreached import why_unreached
from muster_server.dev.cluster import Description

TrailEvent = metadata_pb2.TrailEvent

_ANSWER_S = 60.0
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class TrailError(Exception):
    """The trail could not be read; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events are shown.

    Attributes:
        since_ms: none before it, Unix time.
        who: of this identity alone; None: of all.
        verb: of this call or verb alone, whatever its case; None: of all.
    """

    since_ms: int = 0
    who: str | None = None
    verb: str | None = None

    def has(self, event: TrailEvent) -> bool:
        """Whether an event is shown."""
        return (self.who is None or event.who == self.who) and (
            self.verb is None or event.action.lower() == self.verb.lower()
        )


def parse_since(text: str, now: datetime) -> int:
    """The time that `2h`, `7d` or a date and time in ISO 8601 names, Unix time in ms.

    Raises:
        ValueError: it is neither.
    """
    found = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if found is not None:
        at = now - timedelta(**{_UNITS[found[2]]: int(found[1])})
    else:
        at = datetime.fromisoformat(text)
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0, int(at.timestamp() * 1_000))


def addresses_of(named: str, data: Path) -> Sequence[str]:
    """The instances of metadata: those named, of the settings, or of the `muster dev` cluster in a folder.

    Raises:
        TrailError: there are none.
    """
    for settings in (DiscoverySettings, CoordinatorSettings):
        named = named or os.environ.get(settings.variable("metadata"), "")
    try:
        return tuple(map(str, parse_addresses(named or Description.read(data).metadata)))
    except FileNotFoundError:
        variable = DiscoverySettings.variable("metadata")
        raise TrailError(
            f"name the instances of metadata with --metadata or {variable}: no cluster was started on {data}"
        ) from None
    except ValueError as error:
        raise TrailError(f"--metadata: {error}") from None


async def read(addresses: Sequence[str], trust: Trust, wanted: Wanted) -> list[TrailEvent]:
    """The events that are wanted, the oldest first, from the first instance of metadata that can tell them.

    Raises:
        TrailError: none can.
    """
    problems = []
    for address in addresses:
        async with open_channel(address, trust) as channel:
            stub: Any = metadata_pb2_grpc.MetadataServiceStub(channel)
            found: list[TrailEvent] = []
            problem = ""
            try:
                request = metadata_pb2.ReadTrailRequest(since_ms=wanted.since_ms)
                async for page in stub.ReadTrail(request, timeout=_ANSWER_S):
                    problem = page.message
                    found += filter(wanted.has, page.events)
            except grpc.aio.AioRpcError as error:
                problem = await _why(address, error, trust)
            if not problem:
                return found
            problems.append(f"metadata at {address}: {problem}")
    raise TrailError("; ".join(problems))


async def _why(address: str, error: grpc.aio.AioRpcError, trust: Trust) -> str:
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return "it does not know ReadTrail: it is no metadata, or of a version that keeps no audit trail"
    return await why_unreached(address, error, trust.tls) or f"{error.code().name}: {error.details()}"


def run(addresses: Sequence[str], wanted: Wanted) -> list[TrailEvent]:
    """As `read`, with the trust of the settings."""
    return asyncio.run(read(addresses, Trust.load(), wanted))


def as_lines(events: Sequence[TrailEvent]) -> Iterator[str]:
    """Each event as a line of JSON."""
    for event in events:
        told = {
            "at": _at(event).isoformat(timespec="milliseconds"),
            "server": event.server,
            "action": event.action,
            "who": event.who,
            "proof": event.proof,
            "what": list(event.what),
            "where": event.where,
            "outcome": event.outcome,
            "reason": event.reason,
            "errors": dict(event.errors),
            "count": event.count,
            "left_out": event.left_out,
            "id": event.event_id.hex(),
        }
        yield json.dumps(told, ensure_ascii=False)


def as_text(events: Sequence[TrailEvent]) -> Iterator[str]:
    """Each event as a line for people."""
    for event in events:
        what = ", ".join(event.what) or "several"
        calls = f" ({event.count} calls)" if event.count > 1 else ""
        where = f" from {event.where}" if event.where else ""
        line = f"{_at(event):%Y-%m-%d %H:%M:%S}  {event.outcome:<7}  {event.action} {what}{calls}"
        line += f"  by {event.who or '(nobody)'}{where}, at {event.server}"
        errors = ", ".join(f"{name}: {code}" for name, code in sorted(event.errors.items()))
        yield f"{line}: {'; '.join(filter(None, (event.reason, errors)))}".removesuffix(": ")
    if left_out := sum(event.left_out for event in events):
        yield f"{left_out} further calls were left out: the log was away, or they were too many"


def _at(event: TrailEvent) -> datetime:
    return datetime.fromtimestamp(event.at_ms / 1_000, UTC)
