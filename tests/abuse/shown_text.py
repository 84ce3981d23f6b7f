"""Escape sequences, markup and HTML in everything that a caller may give, and where it comes out again.

Must hold: the command line shows it on a terminal as text, none of it moves the cursor, colours, or makes a
line of its own; the processes' logs stay one JSON object a line, and metrics name groups alone.
"""

import asyncio
import json
import os
import pty
import select
import sys
import tempfile
from pathlib import Path
from typing import Any

import grpc
from abuse.caller import connection, groups_stub, join, name_of
from abuse.lab import Lab, Target
from kit.programs import Broken, report, run
from kit.scrape import scrape
from muster_protos.muster.v1 import common_pb2, coordinator_pb2

SETTINGS = {"MUSTER_LOG_LEVEL": "debug", "MUSTER_TELEMETRY_PROMETHEUS_LISTEN": "127.0.0.1:0"}
EVIL = "\x1b]0;PWNED\x07\x1b[2J\x1b[31mRED\x1b[0m\nFAKE-LINE level=error\r\x9b31m"
NAMES = (
    "[red]m[/red]",
    "<script>alert(1)</script>",
    "[link=http://evil]click[/link]",
    "%n%s%x",
    "${jndi:ldap://x}",
)
TOPIC = "[red]<script>alert(3)</script>"
RAW = {
    "the title of the window": b"\x1b]0;PWNED",
    "a cleared screen": b"\x1b[2J",
    "a bell": b"\x07",
    "a colour of a stranger": b"\x1b[31mRED",
    "an 8-bit escape": b"\xc2\x9b31m",
    "a forged line": b"\nFAKE-LINE",
}
COMMANDS = (
    ("groups", "list"),
    ("groups", "describe"),
    ("groups", "history"),
    ("offsets",),
)
PATIENCE_S = 30.0
COLUMNS = "200"


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="muster-abuse-") as folder:
        async with Lab(Path(folder) / "mine", SETTINGS, with_worker=False) as lab:
            target = await Target.at(lab.cluster.servers)
            shown = 0
            for name in NAMES:
                group = await make(target, name)
                for command in COMMANDS:
                    whole = command if command == ("groups", "list") else (*command, group)
                    output = await asyncio.to_thread(on_a_terminal, lab.cluster.servers, *whole)
                    judge(" ".join(command), output, name)
                    shown += 1
            logs_are_json(lab)
            await metrics_name_groups_alone(lab)
            report(f"{shown} outputs of the command line show text as text")


async def make(target: Target, name: str) -> str:
    """A group with one member whose every text is hostile, as far as it is taken; gives its id."""
    [group] = await target.groups(1, name)
    assignment = common_pb2.Assignment(
        version=1,
        partitions=[common_pb2.TopicPartitions(topic=topic, partitions=[0]) for topic in (EVIL, name)],
    )
    async with connection(target.owner) as channel:
        stub: Any = groups_stub(channel)
        await refuses_reason(stub, group)
        request = join(
            group,
            client_id=name,
            protocol_type=name,
            protocols=[coordinator_pb2.GroupProtocol(name=name, metadata=EVIL.encode())],
        )
        request.member_id = (await stub.JoinGroup(request, timeout=20)).member_id
        joined = await stub.JoinGroup(request, timeout=20)
        given = coordinator_pb2.SyncGroupRequest.Assignment(
            member_id=request.member_id, assignment=assignment.SerializeToString()
        )
        sync = coordinator_pb2.SyncGroupRequest(
            group_id=group, generation=joined.generation, member_id=request.member_id, assignments=[given]
        )
        synced = await stub.SyncGroup(sync, timeout=20)
        commit = coordinator_pb2.OffsetCommitRequest(
            group_id=group, generation=joined.generation, member_id=request.member_id
        )
        commit.topics.add(name=TOPIC).partitions.add(offset=1, metadata=EVIL)
        committed = await stub.OffsetCommit(commit, timeout=20)
    codes = (joined.error_code, synced.error_code, committed.topics[0].partitions[0].error_code)
    if any(codes):
        raise Broken(f"the texts of {name!r} were not taken: {[name_of(code) for code in codes]}")
    return group


async def refuses_reason(stub: Any, group: str) -> None:
    """A reason is for people, so it has nothing that is not for them."""
    try:
        await stub.JoinGroup(join(group, reason=EVIL), timeout=20)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
            return
        raise
    raise Broken("a reason with escape sequences was taken")


def on_a_terminal(servers: str, *arguments: str) -> bytes:
    """What the command line writes to a terminal."""
    command = str(Path(sys.executable).with_name("muster"))
    pid, terminal = pty.fork()
    if not pid:
        environment = {"MUSTER_SERVERS": servers, "COLUMNS": COLUMNS, "TERM": "xterm-256color"}
        os.execve(command, [command, *arguments], {**os.environ, **environment})
    output = b""
    while select.select([terminal], [], [], PATIENCE_S)[0]:
        try:
            read = os.read(terminal, 1 << 16)
        except OSError:  # its other side is closed
            break
        if not read:
            break
        output += read
    os.waitpid(pid, 0)
    os.close(terminal)
    return output


def judge(what: str, output: bytes, name: str) -> None:
    """Raises `Broken` where something reached the terminal, or the text did not."""
    for harm, raw in RAW.items():
        if raw in output:
            raise Broken(f"muster {what}: {harm} came through")
    shown = {"offsets": TOPIC}.get(what, name).encode()
    if shown not in output:
        raise Broken(f"muster {what}: {shown!r} is not shown as it is: {output[-500:]!r}")


def logs_are_json(lab: Lab) -> None:
    for path in sorted((lab.folder / "logs").glob("*.log")):
        for line in path.read_text(errors="replace").splitlines():
            try:
                json.loads(line)
            except ValueError as error:
                raise Broken(f"{path.name} has a line that is no JSON: {line[:200]!r}") from error
            judge(path.name, line.encode(), "")


async def metrics_name_groups_alone(lab: Lab) -> None:
    """Only the label for it has a group's name, and nothing has another text of a caller."""
    groups: set[str] = set()
    for process in lab.cluster.coordinators:
        port = json.loads((lab.folder / "logs" / f"{process.name}.ready").read_text())["metrics"]
        for sample in (await scrape(port)).samples:
            groups.add(sample.labels.get("group", ""))
            text = " ".join(value for label, value in sample.labels.items() if label != "group")
            if found := [name for name in (*NAMES, TOPIC, "PWNED") if name in text]:
                raise Broken(f"{sample.name} of {process.name} has {found} in {sample.labels}")
    if not all(any(group.startswith(name) for group in groups) for name in NAMES):
        raise Broken(f"the metrics name the groups {sorted(groups)}")


if __name__ == "__main__":
    run(main)
