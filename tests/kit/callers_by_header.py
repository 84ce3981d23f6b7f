"""Servers that believe what a header says about who calls, and channels that say it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from muster_runtime.rpc.access.access import AccessSettings
from muster_runtime.rpc.identity import NOBODY, Identity, Proof
from muster_runtime.rpc.identity.callers import Callers
from muster_runtime.rpc.trust.trust import Trust

HEADER = "who"
"""What a call says who makes it in."""


class _ByHeader(Callers):
    async def identify(self, method: str, context: Any) -> Identity:
        name = dict(context.invocation_metadata() or ()).get(HEADER, "")
        return Identity(name, Proof.TOKEN) if name else NOBODY


@dataclass(frozen=True)
class NamedCallers(Trust):
    """Plain text, and callers who are believed: for tests of what follows from who somebody is."""

    @classmethod
    def with_rules(cls, file: Path | None) -> "NamedCallers":
        """With a file of rights; None: without."""
        return cls(access=AccessSettings(file=file))

    def callers(self) -> Callers:
        """See `Trust`."""
        return _ByHeader(self.identity, certificates=False)


class _Naming:
    def __init__(self, who: str) -> None:
        self._who = who

    def _named(self, details: Any) -> Any:
        metadata = grpc.aio.Metadata(*(details.metadata or ()), (HEADER, self._who))
        return details._replace(metadata=metadata)


class _Calls(_Naming, grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return await continuation(self._named(details), request)


class _Streams(_Naming, grpc.aio.StreamStreamClientInterceptor):
    async def intercept_stream_stream(self, continuation: Any, details: Any, request_iterator: Any) -> Any:
        return await continuation(self._named(details), request_iterator)


def named_channel(target: str, who: str) -> grpc.aio.Channel:
    """A channel whose calls are made in the name of somebody; an empty name: of nobody."""
    # gRPC takes an interceptor of several kinds for one of the first of them.
    interceptors: Sequence[Any] = (_Calls(who), _Streams(who)) if who else ()
    return grpc.aio.insecure_channel(target, interceptors=interceptors)
