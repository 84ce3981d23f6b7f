"""Judges the processes of a cluster: whether they answer and serve, versions, clocks. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from muster_protos.muster.internal.v1 import coordinator_pb2 as peer_pb2
from muster_protos.muster.internal.v1 import process_pb2
from muster_protos.muster.v1 import discovery_pb2

from muster_server.doctor.findings import CheckResult, Finding
from muster_server.doctor.processes import Process
from muster_server.roles import COORDINATOR, DISCOVERY, METADATA

CLOCK_WARNING_MS = 2_000
"""Beyond this, times in the logs of different processes cannot be compared."""
CLOCK_FAILED_MS = 60_000
"""Beyond this, what expires by time is removed too early or too late."""

_NOT_THERE: Mapping[str, str] = {
    DISCOVERY: "start it, or name the right address with --servers; clients must be able to reach it",
    METADATA: "start it, or name the right address with --metadata; discovery and coordinators must reach it",
    COORDINATOR: "MUSTER_COORDINATOR_ADVERTISE must name an address that clients can reach; a firewall or "
    "a NetworkPolicy may be in between",
}
_OUTDATED = process_pb2.RIGHTS_STATE_OUTDATED
_NOT_ADMITTED = (
    "MUSTER_INTERNAL_TOKEN_FILE must name a file with a token of the cluster here, too; where it knows its "
    "processes by certificates, that of MUSTER_TLS_CERT_FILE must have a name that its "
    "MUSTER_INTERNAL_PEERS lists"
)
_NOT_SERVING: Mapping[str, str] = {
    DISCOVERY: "it waits for metadata: make that serve first, and see MUSTER_DISCOVERY_METADATA",
    METADATA: "it waits for a majority of the log's nodes, or for `muster-server init`: its log says which",
    COORDINATOR: "it is starting, draining, or cannot renew its lease: its log says which",
}


def judge_processes(processes: Sequence[Process]) -> Iterator[Finding]:
    """Whether each process answers and serves."""
    for process in processes:
        if process.problem:
            remedy = _NOT_THERE[process.role] if process.admitted else _NOT_ADMITTED
            yield Finding(process.role, process.name, CheckResult.FAILED, process.problem, remedy)
        elif not process.serving:
            yield Finding(
                process.role,
                process.name,
                CheckResult.FAILED,
                "it answers but does not serve",
                _NOT_SERVING[process.role],
            )
        else:
            yield Finding(process.role, process.name, CheckResult.OK, "it serves")


def judge_rights(processes: Sequence[Process]) -> Iterator[Finding]:
    """Whether the processes that clients talk to ask what these may do; one finding for all that do not."""
    off = [p.name for p in processes if p.rights == process_pb2.RIGHTS_STATE_OFF]
    on = [p.name for p in processes if p.rights in (process_pb2.RIGHTS_STATE_ON, _OUTDATED)]
    if off:
        detail = "whoever reaches them may do everything: they have no file of rights"
        if on:
            detail = f"they have no file of rights, and {', '.join(on)} have one"
        remedy = "MUSTER_ACCESS_FILE names a file of rules: docs/access.md"
        yield Finding("rights", ", ".join(off), CheckResult.WARNING, detail, remedy)
    for process in processes:
        if process.rights == _OUTDATED:
            detail = "its file of rights cannot be used as it is now; an earlier version of it is in force"
            remedy = "`muster access check` and the process's log say what is wrong with the file"
            yield Finding("rights", process.name, CheckResult.WARNING, detail, remedy)
    if on and not off:
        yield Finding("rights", ", ".join(on), CheckResult.OK, "what no rule allows is refused")
    unknown = [p.name for p in processes if _hides_rights(p)]
    if unknown:
        detail = (
            "whether they have a file of rights is not known: they answer no internal call of this machine"
        )
        remedy = "name metadata with --metadata: it knows where they do; and show what such calls need"
        yield Finding("rights", ", ".join(unknown), CheckResult.SKIPPED, detail, remedy)


def _hides_rights(process: Process) -> bool:
    is_there = process.serving or not process.admitted
    return is_there and process.rights == process_pb2.RIGHTS_STATE_UNSPECIFIED


def judge_coordinators(cluster: discovery_pb2.Cluster) -> Iterator[Finding]:
    """Judges the coordinators' states in the view, and whether enough are live."""
    live = 0
    for node in cluster.coordinators:
        where = f"{node.node_id} ({node.host}:{node.port})"
        if node.state == discovery_pb2.COORDINATOR_STATE_DEAD:
            yield Finding(
                COORDINATOR,
                where,
                CheckResult.FAILED,
                "it died or went silent; others serve its shards",
                "start it again; one that is gone for good is forgotten after ten minutes",
            )
        elif node.state == discovery_pb2.COORDINATOR_STATE_DRAINING:
            yield Finding(COORDINATOR, where, CheckResult.WARNING, "it hands its shards over and ends")
        else:
            live += 1
    if live == 0:
        yield Finding(
            COORDINATOR,
            "all",
            CheckResult.FAILED,
            "no coordinator is live: groups are not served",
            "start at least two; MUSTER_COORDINATOR_METADATA must name the metadata instances",
        )
    elif live == 1:
        yield Finding(
            COORDINATOR,
            "all",
            CheckResult.WARNING,
            "only one coordinator is live: none takes over when it dies",
            "start a second one",
        )


def judge_faults(answers: Mapping[str, peer_pb2.DescribeFaultsResponse]) -> Iterator[Finding]:
    """Judges groups that made a coordinator fail, and shards that it gave up.

    Args:
        answers: answers by the name of the coordinator.
    """
    for name, answer in answers.items():
        for fault in answer.faults:
            whose = f"group {fault.group_id}" if fault.group_id else f"shard {fault.shard}"
            kept = f"the event is kept in {fault.file} there" if fault.file else "the event was not kept"
            if fault.quarantined:
                yield Finding(
                    "groups",
                    f"{whose} at {name}",
                    CheckResult.FAILED,
                    f"it is in quarantine after {fault.error}; {kept}",
                    "upgrade the servers and report the error with the file; `muster groups release` tries "
                    "the group again",
                )
            else:
                yield Finding(
                    "groups",
                    f"{whose} at {name}",
                    CheckResult.WARNING,
                    f"it made the coordinator fail once: {fault.error}; {kept}",
                    "report the error with the file; nothing was lost",
                )
        for shard in answer.failed_shards:
            yield Finding(
                "shards",
                f"shard {shard} at {name}",
                CheckResult.FAILED,
                "it is not served: its log cannot be read, or it failed three times within a minute",
                "look for `shard_failed` in that coordinator's log, and see docs/failures.md",
            )
    if answers and not any(answer.faults or answer.failed_shards for answer in answers.values()):
        yield Finding("groups", "all coordinators", CheckResult.OK, "none made a coordinator fail")


def judge_views(views: Mapping[str, discovery_pb2.Cluster]) -> Iterator[Finding]:
    """Judges whether the discovery instances see the same cluster, and whether all shards are served."""
    known = {(view.cluster_id, view.shard_count) for view in views.values()}
    if len(known) > 1:
        listed = "; ".join(f"{address}: {view.cluster_id}" for address, view in views.items())
        yield Finding(
            "cluster",
            "discovery",
            CheckResult.FAILED,
            f"the discovery instances serve different clusters: {listed}",
            "correct MUSTER_DISCOVERY_METADATA of the one that is wrong",
        )
        return
    view = max(views.values(), key=lambda one: sum(owner.serving for owner in one.shards))
    unserved = view.shard_count - sum(owner.serving for owner in view.shards)
    if unserved:
        yield Finding(
            "cluster",
            view.cluster_id,
            CheckResult.FAILED,
            f"{unserved} of {view.shard_count} shards are not served",
            "normal for a moment after a coordinator ended; if it lasts, look for `shard_failed` in the "
            "coordinators' logs, and see docs/failures.md",
        )
    else:
        yield Finding("cluster", view.cluster_id, CheckResult.OK, f"all {view.shard_count} shards are served")


def judge_log_nodes(cluster: discovery_pb2.Cluster) -> Iterator[Finding]:
    """Judges the nodes of the log, as metadata sees them."""
    for node in cluster.log_nodes:
        if node.available:
            yield Finding("log node", f"node {node.index}", CheckResult.OK, "metadata reads and writes it")
        else:
            yield Finding(
                "log node",
                f"node {node.index}",
                CheckResult.FAILED,
                f"metadata says: {node.problem}",
                "bring it back: it is repaired by itself; `muster doctor --nodes` shows more",
            )


def judge_versions(versions: Mapping[str, str]) -> Iterator[Finding]:
    """Judges whether the versions of all processes may run side by side.

    Args:
        versions: by the name of the process; empty: unknown.
    """
    silent = [name for name, version in versions.items() if _parsed(version) is None]
    if silent:
        yield Finding(
            "versions",
            ", ".join(silent),
            CheckResult.SKIPPED,
            "its version is unknown",
            "it is older than 0.1: upgrade it",
        )
    known = {name: parsed for name, version in versions.items() if (parsed := _parsed(version)) is not None}
    if not known:
        return
    counted = Counter(versions[name] for name in known)
    listed = ", ".join(f"{count} × {version}" for version, count in sorted(counted.items()))
    majors = {major for major, _, _ in known.values()}
    minors = [minor for _, minor, _ in known.values()]
    if len(majors) > 1 or max(minors) - min(minors) > 1:
        yield Finding(
            "versions",
            "all processes",
            CheckResult.FAILED,
            f"they are more than one minor version apart: {listed}; {_of_the_oldest(versions, known)}",
            "bring the older ones up one minor version at a time: docs/upgrade.md",
        )
    elif len(counted) > 1:
        yield Finding(
            "versions",
            "all processes",
            CheckResult.WARNING,
            f"two versions run side by side: {listed}; {_of_the_oldest(versions, known)}",
            "normal during an upgrade; finish it: docs/upgrade.md",
        )
    else:
        yield Finding("versions", "all processes", CheckResult.OK, listed)


def _of_the_oldest(versions: Mapping[str, str], known: Mapping[str, tuple[int, int, int]]) -> str:
    """Which processes run the oldest version."""
    oldest = min(known.values())
    names = sorted(name for name, parsed in known.items() if parsed == oldest)
    return f"{versions[names[0]]} is run by {', '.join(names)}"


def _parsed(version: str) -> tuple[int, int, int] | None:
    parts = version.split("+")[0].split(".")
    if len(parts) < 3 or not all(part.isascii() and part.isdigit() for part in parts[:3]):
        return None
    major, minor, patch = map(int, parts[:3])
    return major, minor, patch


def judge_clocks(ahead_ms: Mapping[str, int | None]) -> Iterator[Finding]:
    """Judges whether the wall clocks agree with this machine's.

    Args:
        ahead_ms: how far each is ahead, by the name of the process or server; None: unknown.
    """
    known = {name: ahead for name, ahead in ahead_ms.items() if ahead is not None}
    wrong = {name: ahead for name, ahead in known.items() if abs(ahead) > CLOCK_WARNING_MS}
    for name, ahead in wrong.items():
        far = abs(ahead) > CLOCK_FAILED_MS
        yield Finding(
            "clocks",
            name,
            CheckResult.FAILED if far else CheckResult.WARNING,
            f"its clock is {abs(ahead) / 1000:.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine's"
            + (": what expires by time is removed too early or too late" if far else ""),
            "run a time service (chrony, systemd-timesyncd) on both machines; no deadline depends on it",
        )
    if known and not wrong:
        most_ms = max(abs(ahead) for ahead in known.values())
        yield Finding(
            "clocks", f"{len(known)} clocks", CheckResult.OK, f"at most {most_ms} ms from this machine's"
        )
    silent = [name for name, ahead in ahead_ms.items() if ahead is None]
    if silent:
        yield Finding(
            "clocks",
            ", ".join(silent),
            CheckResult.SKIPPED,
            "its time is unknown",
            "a server of the log needs the right `+time` for the user; a coordinator is asked at its port "
            "for internal calls, which metadata knows: --metadata",
        )
