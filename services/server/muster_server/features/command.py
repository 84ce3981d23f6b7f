"""`muster features`."""

import asyncio
import json
import os
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import grpc
import typer
from muster.cli.console import console
from muster.cli.ending import without_passwords
from muster_coordinator.settings import CoordinatorSettings
from muster_core.features import Feature
from muster_discovery.settings import DiscoverySettings
from muster_protos.muster.internal.v1 import metadata_pb2, metadata_pb2_grpc
from muster_runtime.addresses import parse_addresses
from muster_runtime.errors import StartupError
from muster_runtime.logs import LogSettings, configure
from muster_runtime.rpc.channels import open_channel
from muster_runtime.rpc.trust.trust import Trust
from muster_runtime.settings import load
from rich.console import Console
from rich.table import Table

from muster_server._unreached import why_unreached
from muster_server.dev.cluster import Description

app = typer.Typer(
    help="What the cluster has enabled; servers that do not know it are refused.", no_args_is_help=True
)

EXIT_REFUSED = 2

_ANSWER_S = 10.0

T = TypeVar("T")

MetadataAddresses = Annotated[
    str,
    typer.Option(
        "--metadata",
        metavar="LIST",
        help="All instances of metadata, host:port,…; default: MUSTER_DISCOVERY_METADATA, else that of "
        "`muster dev`.",
    ),
]
Data = Annotated[Path, typer.Option(help="Folder of the `muster dev` cluster.")]
_DEV = Path(".muster/dev")


class FeaturesError(Exception):
    """The features could not be listed, or one not enabled; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The combined answers of all instances of metadata.

    Attributes:
        enabled: names of the enabled features.
        known: names of the features that all instances know.
        servers: those that are alive.
    """

    enabled: frozenset[str]
    known: frozenset[str]
    servers: Sequence[metadata_pb2.Server]

    def lacking(self, feature: str) -> list[str]:
        """The servers that do not know a feature, for people."""
        return [_words(server) for server in self.servers if feature not in server.features]


@app.command("list")
def list_features(
    metadata: MetadataAddresses = "",
    output: Annotated[str, typer.Option("--output", "-o", help="`table` or `json`.")] = "table",
    data: Data = _DEV,
) -> None:
    """Shows every feature: whether it is enabled, and which servers do not know it."""
    if output not in ("table", "json"):
        _fail(f"--output {output!r}: use table or json")
    found = _run(_listing(metadata, data))
    if output == "json":
        typer.echo(as_json(found))
    else:
        show(found, console())
        if found.known - found.enabled:
            typer.echo(_unseen(_addresses(metadata, data)), err=True)


@app.command()
def enable(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Of the feature; `all`: every one that is known.")
    ],
    metadata: MetadataAddresses = "",
    data: Data = _DEV,
) -> None:
    """Enables a feature for good, once every server that is alive knows it. Then there is no way back.

    From then on a server that does not know it, such as one of an older version, gets no lease and no view.
    Metadata of version 0.1 is seen only if it is named, and a discovery of 0.1 only if it asks another one.
    """

    async def work() -> list[str]:
        addresses, trust = _addresses(metadata, data), Trust.load()
        found = await listing(addresses, trust)
        wanted = sorted(found.known - found.enabled) if name == "all" else [name]
        if not found.enabled.issuperset(wanted):
            typer.echo(_unseen(addresses), err=True)
        for feature in wanted:
            await enable_one(addresses, trust, feature)
        return wanted

    for feature in _run(work()):
        typer.echo(f"{feature} is enabled")


async def _listing(metadata: str, data: Path) -> Listing:
    return await listing(_addresses(metadata, data), Trust.load())


async def listing(addresses: Sequence[str], trust: Trust) -> Listing:
    """Asks every instance.

    Raises:
        FeaturesError: one does not answer, or is older than features, so that no other server shows it.
    """
    answers = await asyncio.gather(*(_ask(address, trust) for address in addresses))
    return Listing(
        frozenset(name for answer in answers for name in answer.enabled),
        frozenset.intersection(*(frozenset(answer.known) for answer in answers)),
        max((answer.servers for answer in answers), key=len),
    )


async def _ask(address: str, trust: Trust) -> metadata_pb2.ListFeaturesResponse:
    async with open_channel(address, trust) as channel:
        stub: Any = metadata_pb2_grpc.MetadataServiceStub(channel)
        try:
            answer: metadata_pb2.ListFeaturesResponse = await stub.ListFeatures(
                metadata_pb2.ListFeaturesRequest(), timeout=_ANSWER_S
            )
        except grpc.aio.AioRpcError as error:
            raise FeaturesError(f"metadata at {address} {await _why(address, error, trust)}") from None
    return answer


async def _why(address: str, error: grpc.aio.AioRpcError, trust: Trust) -> str:
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return (
            "does not know the call: it is no metadata (name all instances of it with --metadata), or of a "
            "version without features (replace it by this version first)"
        )
    if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return f"refuses: {error.details()}"
    if unreached := await why_unreached(address, error, trust.tls):
        return f"is not reached: {unreached}"
    return (
        f"does not answer ({error.code().name}: {error.details()}): start it, for it may know no "
        "features; if it is gone for good, name only the others with --metadata"
    )


async def enable_one(addresses: Sequence[str], trust: Trust, feature: str) -> None:
    """Enables a feature through the first instance that can.

    Raises:
        FeaturesError: it was not enabled, or it is not known whether it was.
    """
    problem = ""
    for address in addresses:
        async with open_channel(address, trust) as channel:
            stub: Any = metadata_pb2_grpc.MetadataServiceStub(channel)
            try:
                answer: metadata_pb2.EnableFeatureResponse = await stub.EnableFeature(
                    metadata_pb2.EnableFeatureRequest(name=feature), timeout=_ANSWER_S
                )
            except grpc.aio.AioRpcError as error:
                problem = f"metadata at {address} {await _why(address, error, trust)}"
                continue
        if answer.outcome == metadata_pb2.ENABLE_FEATURE_OUTCOME_ENABLED:
            return
        problem = "; ".join([answer.message, *map(_words, answer.lacking)])
        if answer.outcome != metadata_pb2.ENABLE_FEATURE_OUTCOME_NOT_AVAILABLE:
            break
    raise FeaturesError(f"{feature} was not enabled: {problem}")


def _unseen(addresses: Sequence[str]) -> str:
    """What this command cannot see, and the operator has to check."""
    return (
        f"asked: metadata at {', '.join(addresses)}, and every server known there. Metadata of version 0.1 "
        "is never known: make sure that none runs elsewhere, and no discovery that asks such a one"
    )


def _words(server: metadata_pb2.Server) -> str:
    return f"{server.role} {server.name}, version {server.version or 'unknown'}"


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        configure(load(LogSettings, level="error"))
        return asyncio.run(work)
    except (FeaturesError, StartupError) as error:
        _fail(str(error))


def _addresses(metadata: str, data: Path) -> Sequence[str]:
    for settings in (DiscoverySettings, CoordinatorSettings):
        metadata = metadata or os.environ.get(settings.variable("metadata"), "")
    try:
        return tuple(map(str, parse_addresses(metadata or Description.read(data).metadata)))
    except FileNotFoundError:
        raise FeaturesError(
            f"name the instances of metadata with --metadata or {DiscoverySettings.variable('metadata')}: no "
            f"cluster was started on {data}"
        ) from None
    except ValueError as error:
        raise FeaturesError(f"--metadata: {error}") from None


def _fail(message: str) -> NoReturn:
    typer.echo(without_passwords(f"muster features: {message}"), err=True)
    raise typer.Exit(EXIT_REFUSED)


def as_json(found: Listing) -> str:
    """The listing as JSON."""
    names = sorted(found.enabled | found.known)
    return json.dumps(
        {
            "features": [
                {"name": name, "enabled": name in found.enabled, "lacking": found.lacking(name)}
                for name in names
            ],
            "servers": [
                {
                    "role": server.role,
                    "name": server.name,
                    "version": server.version,
                    "features": list(server.features),
                }
                for server in found.servers
            ],
        },
        indent=2,
    )


def show(found: Listing, console: Console) -> None:
    """Prints the listing."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("FEATURE", "STATE", "WHAT IT BRINGS"):
        table.add_column(column, overflow="fold")
    for name in sorted(found.enabled | found.known):
        lacking = found.lacking(name)
        state = "enabled" if name in found.enabled else "can be enabled" if not lacking else "not yet"
        about = next((feature.about for feature in Feature if feature == name), "")
        table.add_row(name, state, about)
    console.print(table)
    older = sorted({words for name in found.known for words in found.lacking(name)})
    for words in older:
        console.print(f"{words}: does not know all of them", style="yellow", markup=False)
