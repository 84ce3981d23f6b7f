"""`muster-audit`."""

import errno
import json
import os
import shutil
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import redis
import typer
from muster.cli.console import console
from muster.cli.ending import without_passwords
from muster_core.position import NOWHERE, Position
from muster_server.verify.anchors import Anchoring
from muster_server.verify.command import AcceptRestore, AnchorKey, AnchorPlace, KeepAnchor, SignWith
from muster_server.verify.reader import PAGE_ENTRIES, LogUnreadableError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster_audit.follow.checkpoint import CheckpointUnusable
from muster_audit.promises import ALL, Rules
from muster_audit.reading.facts import Broken
from muster_audit.reading.sources import open_source
from muster_audit.spark.java import JavaMissing
from muster_audit.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from muster_audit.check import Progress, Result

_NOT_WRITTEN = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})

EXIT_BROKEN = 1
EXIT_UNREADABLE = 2

_COMMAND = "muster-audit"

app = typer.Typer(
    help="Proves from the log, with Spark, that no promise was broken; keeps the history that is trimmed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Address = Annotated[
    str, typer.Argument(help="Nodes of the log, redis://host:port,…, or the folder of an export.")
]
Master = Annotated[
    str, typer.Option(help="Spark cluster, e.g. spark://host:7077; default: all cores of this machine.")
]
SparkLog = Annotated[
    Path | None,
    typer.Option(help="File for Spark's own log; `-`: standard error; default: a temporary file."),
]
MemoryMb = Annotated[
    int,
    typer.Option(min=1, max=1_048_576, help="Memory for the nonces of one task, MiB; more go to files."),
]


@app.command(name="check")
def check_command(
    address: Address,
    nodes: Annotated[
        str, typer.Option(help="`all`: also compare what the nodes hold; `one`: do not.")
    ] = "one",
    rules: Annotated[Rules, typer.Option(help="`all`, or only those of the log itself.")] = Rules.ALL,
    output: Annotated[str, typer.Option("--output", "-o", help="`text` or `json`.")] = "text",
    report: Annotated[
        Path | None, typer.Option(help="Folder for index.html and Parquet tables; new or empty.")
    ] = None,
    last: Annotated[
        Path | None, typer.Option(help="Folder of an earlier report, which the page compares this one with.")
    ] = None,
    acks: Annotated[
        Path | None,
        typer.Option(
            help="Acknowledgements noted elsewhere (Parquet or JSON lines): shard, epoch, offset, at_ms."
        ),
    ] = None,
    reads: Annotated[
        Path | None,
        typer.Option(
            help="Reads noted elsewhere: group_id, topic, partition, offset (-1: nothing), began_at_ms."
        ),
    ] = None,
    max_group_size: Annotated[int, typer.Option(min=1, help="Members that a group may have.")] = 5_000,
    memory_mb: MemoryMb = 256,
    page_entries: Annotated[
        int, typer.Option(min=10, max=20_000, help="Entries asked for at a time; 200 spares a busy primary.")
    ] = PAGE_ENTRIES,
    tasks: Annotated[
        int, typer.Option(min=0, max=1_000, help="Tasks that read; 0: by cores and entries.")
    ] = 0,
    anchor: AnchorPlace = "",
    anchor_key: AnchorKey = None,
    accept_restore: AcceptRestore = False,
    keep_anchor: KeepAnchor = "",
    sign_with: SignWith = None,
    master: Master = "",
    spark_log: SparkLog = None,
) -> None:
    """Checks every promise from the log alone, read-only. Exit code 1: one was broken; 2: it was not read."""
    from muster_audit.check import CheckOptions, check, tables_folder
    from muster_audit.run_summary import RunSummary

    for name, value, known in (("nodes", nodes, ("all", "one")), ("output", output, ("text", "json"))):
        if value not in known:
            _fail(f"--{name} {value!r}: use {' or '.join(known)}")
    if report is not None and report.is_dir() and any(report.iterdir()):
        _fail(f"--report {report}: the folder is not empty")
    if last is not None and report is None:
        _fail("--last: the page compares with it, so --report is needed, too")
    try:
        last_run = None if last is None else RunSummary.read(last)
    except ValueError as error:
        _fail(str(error))
    anchoring = Anchoring(anchor, anchor_key, keep_anchor, sign_with, accept_restore)
    options = CheckOptions(
        rules, nodes == "all", memory_mb, page_entries, max_group_size, acks, reads, tasks, anchoring
    )
    with (
        session("check", master, spark_log, writes=report) as (spark, progress),
        tables_folder(report) as tables,
    ):
        result = check(spark, address, options, tables, progress)
        if report is not None:
            from muster_audit.page import write_page

            write_page(result, report, last_run)
    if output == "json":
        typer.echo(as_json(result))
    else:
        show(result, console())
        if report is not None:
            typer.echo(f"report: {report / 'index.html'}")
    if not result.clean:
        raise typer.Exit(EXIT_BROKEN)


@app.command(name="export")
def export_command(
    address: Address,
    folder: Annotated[Path, typer.Argument(help="Folder of the export; new, or one of the same cluster.")],
    metadata: Annotated[
        str, typer.Option(help="host:port of a metadata service that is notified how far; empty: none.")
    ] = "",
    keep_anchor: KeepAnchor = "",
    sign_with: SignWith = None,
    master: Master = "",
    spark_log: SparkLog = None,
) -> None:
    """Writes what is new and verified to Parquet, by shard and day.

    Exit code 1: a log is broken; 2: one could not be read, or written, or its export not be reported.
    """
    if "://" not in address:
        _fail(f"{address!r} is no address of a log: redis://host:port,host:port,…")
    with session("export", master, spark_log, writes=folder) as (spark, progress):
        from muster_audit.export import ends_of_export, export, report_exported
        from muster_audit.reading.exported import ANCHOR

        progress(f"exporting to {folder}")
        exported = export(spark, address, folder)
        if not any(one.broken for one in exported):
            anchoring = Anchoring(keep=keep_anchor or str(folder / ANCHOR), private_key=sign_with)
            anchoring.store(open_source(str(folder)).cluster_id, ends_of_export(exported))
        problems = report_exported(metadata, exported) if metadata else []
    for one in exported:
        if one.problem:
            upto = f"exported up to {one.end.stream_id}; " if one.end != NOWHERE else ""
            typer.echo(f"log {one.shard}: {upto}{one.problem}", err=True)
    for problem in problems:
        typer.echo(problem, err=True)
    logs = sum(bool(one.end_hash) for one in exported)
    reported = f", reported to {metadata}" if metadata and not problems else ""
    typer.echo(f"{sum(one.written for one in exported):,} new entries; {logs} logs in {folder}{reported}")
    if any(one.broken for one in exported):
        raise typer.Exit(EXIT_BROKEN)
    if problems or any(one.problem for one in exported):
        raise typer.Exit(EXIT_UNREADABLE)


@app.command(name="follow")
def follow_command(
    address: Address,
    checkpoint: Annotated[Path, typer.Option(help="File that keeps how far the logs were checked.")],
    output: Annotated[str, typer.Option("--output", "-o", help="`text` or `json`, one line each.")] = "text",
    metrics: Annotated[
        Path | None, typer.Option(help="File for metrics in Prometheus' text format, e.g. audit.prom.")
    ] = None,
    poll_seconds: Annotated[float, typer.Option(min=0.1, max=5.0, help="Pause between two looks.")] = 1.0,
    fail_fast: Annotated[bool, typer.Option(help="End at the first violation.")] = False,
    max_group_size: Annotated[int, typer.Option(min=1, help="Members that a group may have.")] = 5_000,
    memory_mb: MemoryMb = 256,
    keep_anchor: KeepAnchor = "",
    sign_with: SignWith = None,
) -> None:
    """Checks the log as it grows and reports each violation once, until it is stopped. Needs no Spark.

    It reads each log at one node: `check --nodes all` also compares the nodes, and their copies of snapshots.

    Exit code 1: a promise was broken, now or before; 2: the log or the checkpoint cannot be read.
    """
    from muster_audit.follow.follow import Listener, follow
    from muster_audit.follow.log_follower import FollowOptions

    if output not in ("text", "json"):
        _fail(f"--output {output!r}: use text or json")
    if "://" not in address:
        _fail(f"{address!r} is no address of a log: redis://host:port,host:port,…")
    stop = threading.Event()
    before = {n: signal.signal(n, lambda *_: stop.set()) for n in (signal.SIGTERM, signal.SIGINT)}

    def report(broken: Broken) -> None:
        if output == "json":
            typer.echo(json.dumps(_violation(broken)))
        else:
            typer.echo("\n  ".join((_sentence(broken), *broken.around)), err=True)
        if fail_fast:
            stop.set()

    def report_unreachable(problem: str) -> None:
        text = f"cannot be read: {problem}; trying again" if problem else "can be read again"
        typer.echo(f"muster-audit: the log {text}", err=True)

    options = FollowOptions(poll_seconds, memory_mb, max_group_size=max_group_size)
    try:
        listener = Listener(report, report_unreachable)
        place = keep_anchor or str(checkpoint.with_name(checkpoint.name + ".anchor"))
        anchoring = Anchoring(keep=place, private_key=sign_with)
        broken = follow(address, checkpoint, options, listener, stop, metrics, anchoring)
    except (CheckpointUnusable, LogUnreadableError, redis.RedisError, OSError) as error:
        _fail(_in_words(error, checkpoint))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if broken:
        raise typer.Exit(EXIT_BROKEN)


@app.command(name="describe")
def describe_command(
    address: Address,
    group: Annotated[str, typer.Argument(help="Id of the group.")],
    at: Annotated[str, typer.Option(help="Time, e.g. 2026-11-21T10:00:00Z, or ms since the Unix epoch.")],
    output: Annotated[str, typer.Option("--output", "-o", help="`text` or `json`.")] = "text",
) -> None:
    """What a group looked like at a time, from the log or from an export. Needs no Spark."""
    from muster_audit.describe import as_dict, describe_at, parse_time, show_then

    if output not in ("text", "json"):
        _fail(f"--output {output!r}: use text or json")
    try:
        source = open_source(address)
        try:
            then = describe_at(source, group, parse_time(at))
        finally:
            source.close()
    except (LogUnreadableError, ValueError) as error:
        _fail(str(error))
    if output == "json":
        typer.echo(json.dumps(as_dict(then, group), indent=2))
    else:
        show_then(then, group, console())
    if then.group is None:
        raise typer.Exit(EXIT_BROKEN)


@app.command(name="insights")
def insights_command(
    lake: Annotated[Path, typer.Argument(help="Folder of a lake, which `muster-lake build` makes.")],
    report: Annotated[Path, typer.Option(help="File for the page.")],
    days: Annotated[
        int, typer.Option(min=1, max=3_660, help="Length of the period, to the last record.")
    ] = 7,
    stall_seconds: Annotated[
        int, typer.Option(min=1, help="How long a committed offset may stay as it is.")
    ] = 300,
    slo: Annotated[
        float, typer.Option(min=0.0, max=100.0, help="Percent of the time that partitions are to be owned.")
    ] = 99.9,
    master: Master = "",
    spark_log: SparkLog = None,
) -> None:
    """Analyses a lake: one page about the last days, beside the days before. Exit code 2: it was not read."""

    def there_is_a_lake() -> None:
        from muster_audit.lake.insights import loaded

        loaded(lake)

    with session("insights", master, spark_log, first=there_is_a_lake, writes=report) as (spark, progress):
        from muster_audit.lake.insights import look_into
        from muster_audit.lake.insights_page import write_page

        write_page(look_into(spark, lake, days, stall_seconds * 1_000, slo / 100, progress), report)
    typer.echo(f"report: {report}")


@app.command(name="executor", hidden=True)
def executor_command() -> None:
    """What a pod runs that Spark starts."""
    from muster_audit.spark.executor import NotAnExecutor, become_executor

    try:
        become_executor()
    except (NotAnExecutor, JavaMissing) as error:
        _fail(str(error))


def _fail(message: str, command: str = _COMMAND) -> NoReturn:
    typer.echo(without_passwords(f"{command}: {message}"), err=True)
    raise typer.Exit(EXIT_UNREADABLE)


def _in_words(error: Exception, writes: Path | None) -> str:
    """What went wrong, with the name of what is made where an open file cannot be written: that has none."""
    if isinstance(error, OSError) and error.errno in _NOT_WRITTEN and not error.filename and writes:
        return f"{writes} cannot be written: {os.strerror(error.errno)}"
    return str(error)


@contextmanager
def session(
    name: str,
    master: str,
    log: Path | None,
    command: str = _COMMAND,
    *,
    first: Callable[[], None] = lambda: None,
    writes: Path | None = None,
) -> "Iterator[tuple[SparkSession, Progress]]":
    """A Spark session and what shows the progress; what goes wrong becomes a sentence and exit code 2.

    Args:
        name: of the subcommand.
        master: address of Spark's cluster; empty: see `spark_session`.
        log: file for Spark's own log; `-`: standard error; absent: one that is kept only where a run fails.
        command: the program, which its messages name.
        first: called before Spark is started, to look for what would refuse the run.
        writes: what the run makes; named where the disk is full.
    """
    console = Console(stderr=True)
    folder = Path(tempfile.mkdtemp(prefix="muster-audit-"))
    target = None if log is not None and str(log) == "-" else (log or folder / "spark.log")
    keep = False
    try:
        first()
        with console.status("starting Spark") as status:

            def progress(text: str) -> None:
                status.update(text)

            with spark_session(f"{command} {name}", master=master, folder=folder, log=target) as spark:
                yield spark, progress
    except (JavaMissing, LogUnreadableError, ValueError, OSError, redis.RedisError) as error:
        _fail(_in_words(error, writes), command)
    except ModuleNotFoundError:
        raise
    except Exception as error:
        unreadable = _reason(error)
        if not unreadable:
            keep = True
            traceback.print_exc()
            unreadable = f"the run failed; Spark's own log is in {target}"
        _fail(unreadable, command)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _reason(error: Exception) -> str:
    """The sentence of an error that a task raised, if it is one that we know."""
    for line in str(error).splitlines():
        _, found, text = line.partition("LogUnreadableError: ")
        if not found:
            _, found, text = line.partition("LogTrimmedError: ")
        if found:
            return text.strip()
    return ""


def show(result: "Result", console: Console) -> None:
    """The result for people."""
    table = Table(title=f"What the log of {result.cluster_id} shows", title_justify="left")
    for column in ("id", "promise", "severity", "looked at", "verdict"):
        table.add_column(column, justify="right" if column == "looked at" else "left")
    for row in ALL.values():
        broken, looked = result.broken[row.id], result.checked[row.id]
        verdict = (
            Text(f"BROKEN {broken}×", "bold red") if broken else Text("holds" if looked else "–", "green")
        )
        table.add_row(row.id, row.promise, row.severity.value, f"{looked:,} {row.counted}", verdict)
    console.print(table)
    for number, problem in sorted(result.problems.items()):
        console.print(f"node {number} was not read: {problem}", style="yellow", markup=False)
    for text in result.to_repair:
        console.print(f"to be repaired in {text}", style="yellow", markup=False)
    for note in result.notes:
        console.print(note, style="yellow", markup=False)
    shown: set[str] = set()
    for violation in result.violations:
        if violation.invariant in shown:
            continue
        shown.add(violation.invariant)
        console.print(_sentence(violation), style="red", markup=False)
        for line in violation.around:
            console.print(f"  {line}", markup=False, highlight=False)
    nodes = len(result.compared_nodes) if result.compared else 1
    summary = "clean" if result.clean else _violations(sum(result.broken.values()))
    console.print(
        f"{len(result.logs)} logs, {result.entries:,} entries, "
        f"{nodes} of {result.nodes} nodes, {result.seconds:.1f} s: {summary}",
        style="green" if result.clean else "bold red",
        highlight=False,
    )


def _sentence(violation: Broken) -> str:
    place = Position(violation.epoch, violation.offset).stream_id
    return f"{violation.invariant} is broken in {violation.log} at {place}: {violation.detail}"


def _violation(violation: Broken) -> dict[str, object]:
    return {
        "invariant": violation.invariant,
        "log": violation.log,
        "position": Position(violation.epoch, violation.offset).stream_id,
        "detail": violation.detail,
        "around": violation.around,
    }


def _violations(count: int) -> str:
    return f"{count} violation{'s' if count > 1 else ''}"


def as_json(result: "Result") -> str:
    """The result for programs."""
    return json.dumps(
        {
            "clean": result.clean,
            "cluster_id": result.cluster_id,
            "nodes": result.nodes,
            "unread_nodes": result.problems,
            "to_repair": result.to_repair,
            "notes": result.notes,
            "compared": result.compared,
            "compared_nodes": sorted(result.compared_nodes),
            "logs": len(result.logs),
            "entries": result.entries,
            "groups": sum(log.groups for log in result.logs),
            "seconds": round(result.seconds, 3),
            "invariants": [
                {**asdict(row), "looked_at": result.checked[row.id], "broken": result.broken[row.id]}
                for row in ALL.values()
            ],
            "violations": [_violation(violation) for violation in result.violations],
        },
        indent=2,
    )
