"""Where the password of the log's nodes, or a token of telemetry, might come out: logs, output, errors.

Must hold: nothing that a process writes or a command shows contains a secret, also where an address is wrong
or cannot be read, and no mistake in one ends in a traceback.
"""

import asyncio
import json
import os
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from kit.programs import Broken, report, run
from kit.waiting import until
from muster_server.dev.cluster import DESCRIPTION, DevCluster
from muster_server.dev.ports import LOOPBACK, free_ports, is_free
from muster_server.dev.redis_nodes import server_binary

SECRET = "S3CRETpw"
QUOTED, PASSWORD = f"{SECRET}%21x", f"{SECRET}!x"
OTHER_PASSWORD = f"{SECRET}-other"
TOKEN = "TOKEN123"
TELEMETRY = {
    "MUSTER_TELEMETRY_OTLP_HEADERS": f"authorization={TOKEN}",
    "MUSTER_TELEMETRY_OTLP_ENDPOINT": "http://127.0.0.1:9",
}
OWNER_ONLY = 0o600
PATIENCE_S = 30.0
SERVED_S = 8.0
"""A process that serves is ended after so long: it has said what it says at its start."""

AT_ONCE = 3
CHANGED_S = 3.0


def bad_addresses(port: int) -> tuple[str, ...]:
    """Addresses with a secret in them that are no addresses, or nobody's."""
    place = f"{LOOPBACK}:{port}"
    return (
        f"redis://:{QUOTED}@{LOOPBACK}:notaport",
        f"redis://:{QUOTED}@{LOOPBACK}:1",
        f"http://:{QUOTED}@{LOOPBACK}",
        f"redis//:{QUOTED}@{LOOPBACK}",
        f"redis://:{QUOTED}@nosuchhost.invalid:6379",
        f"redis://u:{SECRET}/with/slash@{place}",
        f"redis://u:{SECRET}#hash@{place}",
        f"redis://u:{SECRET}?q@{place}",
        f"redis://u:{SECRET}@x@{place}",
        f"redis://u:{SECRET},{place}",
        f"rediss://:{QUOTED}@{place}",
        f":{QUOTED}@{place}",
        f"redis://:{SECRET}-wrong@{place}",
    )


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="muster-secrets-") as made:
        folder, [port] = Path(made), free_ports(1)
        async with locked_node(folder, port):
            url = f"redis://:{QUOTED}@{LOOPBACK}:{port}"
            settings = {
                **TELEMETRY,
                "MUSTER_LOG_LEVEL": "debug",
                "MUSTER_TELEMETRY_PROMETHEUS_LISTEN": "127.0.0.1:0",
            }
            async with DevCluster(folder / "c", redis_url=url, coordinators=1, settings=settings) as cluster:
                looked_at = processes(cluster)
                looked_at += await commands(cluster, url)
                looked_at += await mistakes(folder, port, url)
                await another_password(cluster, port)
            looked_at += len([no_secret(role.name, role.process.log.read_text()) for role in cluster.roles])
    report(f"{looked_at} outputs name no secret")


@asynccontextmanager
async def locked_node(folder: Path, port: int) -> AsyncIterator[None]:
    """A node of the log that wants a password."""
    options = {"port": port, "bind": LOOPBACK, "requirepass": PASSWORD, "appendonly": "yes", "dir": folder}
    arguments = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    process = await asyncio.create_subprocess_exec(
        server_binary(), *arguments, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        await until(lambda: not is_free(port), "the node")
        yield
    finally:
        process.terminate()
        await process.wait()


def no_secret(what: str, text: str) -> str:
    """Raises `Broken` if a text has a secret, or is a traceback; gives the text."""
    for line in text.splitlines():
        if SECRET in line or TOKEN in line:
            raise Broken(f"{what} shows a secret: {line[:300]}")
        if line.startswith("Traceback"):
            raise Broken(f"{what} ends in a traceback: {text.splitlines()[-1][:300]}")
    return text


def processes(cluster: DevCluster) -> int:
    """What the processes themselves show; gives how many places were looked at."""
    logs = cluster.folder / "logs"
    for role in cluster.roles:
        port = json.loads((logs / f"{role.name}.ready").read_text())["metrics"]
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=10) as answer:
            no_secret(f"/metrics of {role.name}", answer.read().decode())
        no_secret(f"the log of {role.name}", role.process.log.read_text())
        command_line = Path(f"/proc/{role.process.pid}/cmdline")
        if command_line.exists():
            no_secret(f"the command line of {role.name}", command_line.read_text())
    mode = (cluster.folder / DESCRIPTION).stat().st_mode & 0o777
    if mode != OWNER_ONLY:
        raise Broken(f"{DESCRIPTION}, which names the nodes, can be read by others: {mode:o}")
    return 3 * len(cluster.roles)


async def output_of(command: Sequence[str], variables: Mapping[str, str] | None = None) -> str:
    """What a command of ours writes, on both its ways; one that does not end is ended."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name(command[0])),
        *command[1:],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**inherited, **(variables or {})},
    )
    assert process.stdout is not None
    reading = asyncio.ensure_future(process.stdout.read())
    try:
        patience_s = SERVED_S if "--roles" in command else PATIENCE_S
        await asyncio.wait_for(asyncio.shield(reading), patience_s)
    except TimeoutError:
        process.kill()
    await process.wait()
    return (await reading).decode(errors="replace")


async def commands(cluster: DevCluster, url: str) -> int:
    """What commands show of a cluster that is well."""
    log = {"MUSTER_METADATA_REDIS_URL": url}
    whole = {
        **log,
        **TELEMETRY,
        "MUSTER_SERVERS": cluster.servers,
        "MUSTER_DISCOVERY_METADATA": cluster.metadata[0].address,
    }
    shown: tuple[tuple[Sequence[str], Mapping[str, str], str], ...] = (
        (("muster-server", "config"), whole, "redis"),
        (("muster-server", "config", "--json"), whole, "redis"),
        (("muster", "doctor"), whole, "coordinator"),
        (("muster", "verify", url), {}, "clean"),
        (("muster", "doctor", "--nodes"), log, "node"),
    )
    for command, variables, expected in shown:
        what = " ".join(command[:2])
        text = no_secret(what, await output_of(command, variables))
        if expected not in text.lower():
            raise Broken(f"{what} shows nothing of the cluster: {text[-300:]!r}")
    return len(shown)


async def mistakes(folder: Path, port: int, url: str) -> int:
    """What commands say of addresses and settings that are wrong."""
    tried: list[tuple[str, Sequence[str], Mapping[str, str]]] = []
    for number, address in enumerate(bad_addresses(port)):
        variables = {"MUSTER_METADATA_REDIS_URL": address, "MUSTER_METADATA_LISTEN": f"{LOOPBACK}:0"}
        # Two read every address; the others, which read it in the same way, take turns.
        others: tuple[Sequence[str], ...] = (
            ("muster-server", "config"),
            ("muster-server", "init"),
            ("muster", "doctor", "--nodes"),
        )
        for command, given in (
            (("muster-server", "--roles", "metadata"), variables),
            (("muster", "verify", address), {}),
            (others[number % len(others)], variables),
        ):
            tried.append((f"{' '.join(command[:2])} with {address.replace(SECRET, '…')}", command, given))
    two_lines = folder / "two-lines"
    two_lines.write_text(f"{url}\nsecond line")
    for name, value in (
        ("MUSTER_METADATA_REDIS_URLL", url),
        ("MUSTER_TELEMETRY_OTLP_HEADERS", f"{TOKEN} no equals sign"),
        ("MUSTER_METADATA_REDIS_URL_FILE", str(two_lines)),
    ):
        tried.append((f"config with a wrong {name}", ("muster-server", "config"), {name: value}))
    places = asyncio.Semaphore(AT_ONCE)

    async def attempt(what: str, command: Sequence[str], variables: Mapping[str, str]) -> None:
        async with places:
            no_secret(what, await output_of(command, variables))

    await asyncio.gather(*(attempt(*one) for one in tried))
    return len(tried)


async def another_password(cluster: DevCluster, port: int) -> None:
    """The password is changed while the cluster runs, and changed back; the logs are looked at later."""
    with socket.create_connection((LOOPBACK, port), 5) as connection:
        connection.sendall(
            f"AUTH {PASSWORD}\r\nCONFIG SET requirepass {OTHER_PASSWORD}\r\n"
            "CLIENT KILL TYPE normal SKIPME yes\r\n".encode()
        )
        began_s = time.monotonic()
        log = cluster.metadata[0].process.log
        size = log.stat().st_size
        await until(
            lambda: log.stat().st_size > size and time.monotonic() > began_s + CHANGED_S,
            "metadata to say that it is shut out",
        )
        connection.sendall(f"CONFIG SET requirepass {PASSWORD}\r\n".encode())
        connection.recv(1 << 12)


if __name__ == "__main__":
    run(main, limit_s=600)
