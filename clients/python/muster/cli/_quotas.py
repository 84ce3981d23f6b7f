"""`muster quotas`: what callers may ask for, what they use, and who was refused."""

from typing import Annotated

import typer
from muster_protos.muster.v1 import quotas_pb2

from muster._cluster.quota_calls import ProcessQuotas
from muster.cli._output import Format, Output, Servers, as_dict, ask, say, show_json, show_table

_Caller = quotas_pb2.DescribeQuotasResponse.Caller
_Use = quotas_pb2.DescribeQuotasResponse.Use


def quotas(
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Callers of each process at most.")] = 20,
    refused: Annotated[bool, typer.Option("--refused", help="Only callers that were refused.")] = False,
    servers: Servers = None,
    output: Format = Output.TABLE,
) -> None:
    """Who asks for how much at each process, and who was refused; the settings are MUSTER_QUOTA_…."""
    found = ask(servers, lambda cluster: cluster.quotas(limit))
    if output is Output.JSON:
        show_json([_as_row(process) for process in found])
        return
    rows = [
        (
            process.address,
            _name(caller),
            use.quota,
            use.limit or "-",
            use.used,
            use.refused,
            _ago(caller, use),
        )
        for process in found
        if process.quotas is not None
        for caller in process.quotas.callers
        for use in caller.uses
        if use.refused or (use.used and not refused)
    ]
    columns = ("PROCESS", "CALLER", "QUOTA", "LIMIT", "USED", "REFUSED", "LAST REFUSED")
    show_table(columns, rows, "nobody was refused" if refused else "nobody asks for anything")
    for process in found:
        if process.problem:
            say(f"{process.address} could not be asked: {process.problem}")
    if any(process.problem for process in found):
        raise typer.Exit(1)


def _name(caller: _Caller) -> str:
    return f"groups {caller.name}…" if caller.is_groups else caller.name


def _ago(caller: _Caller, use: _Use) -> str:
    """When the caller was refused something last, where it was refused this."""
    is_told = use.refused and caller.HasField("refused_ago_ms")
    return f"{caller.refused_ago_ms / 1_000:.0f} s ago" if is_told else "-"


def _as_row(process: ProcessQuotas) -> dict[str, object]:
    quotas = None if process.quotas is None else as_dict(process.quotas)
    return {"address": process.address, "quotas": quotas, "problem": process.problem}
