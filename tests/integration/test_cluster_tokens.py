"""A cluster that asks who calls: a worker whose tokens are renewed while it runs, and the command line."""

import asyncio
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import muster
import pytest
from kit import forked
from kit.certificates import AUTHORITY, Certificates
from kit.issuer import Issuer
from kit.tokens import write_token
from kit.waiting import until
from muster._session.end import How
from muster_server.dev.cluster import DevCluster

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not on the path; install it"),
]

LASTS_S = 3


def cli(servers: str, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return forked.run(
        [forked.MUSTER, "topics", "list", "--servers", servers], {**os.environ, **settings}, timeout=120
    )


async def test_a_worker_outlives_its_tokens_and_the_keys_of_their_issuer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Streams end with their token and are opened with the next one; nobody rebalances, or loses a commit."""
    caplog.set_level(logging.DEBUG, "muster")
    certificates, issuer = Certificates(tmp_path / "certificates"), Issuer()
    keys, token = tmp_path / "keys.json", tmp_path / "token"
    keys.write_bytes(issuer.key_set())
    settings = {
        **certificates.settings,
        **issuer.settings,
        "MUSTER_TLS_REQUIRE_CLIENT_CERTIFICATE": "false",
        "MUSTER_IDENTITY_TOKEN_JWKS_FILE": str(keys),
        "MUSTER_IDENTITY_TOKEN_LEEWAY_MS": "0",
    }
    servers_of = muster.TlsFiles(certificates.certificate(AUTHORITY))
    made: list[float] = []

    def renew() -> None:
        made.append(time.time())
        write_token(token, issuer.token("worker", exp=int(made[-1]) + LASTS_S))

    async def keep_renewing() -> None:
        while True:
            await asyncio.sleep(1)
            renew()

    positions: dict[int, list[tuple[int, int]]] = {0: [], 1: []}

    async def work(p: muster.Partition) -> None:
        position = await p.committed() or 0
        while True:
            position += 1
            await p.commit(position)
            positions[p.number].append((p.generation, position))
            await asyncio.sleep(0.02)

    async with DevCluster(tmp_path / "cluster", coordinators=1, settings=settings) as cluster:
        renew()
        renewing = asyncio.create_task(keep_renewing())
        stop = asyncio.Event()
        fleet = asyncio.create_task(
            muster.arun(
                work,
                group="g",
                topic="t",
                partitions=2,
                servers=cluster.servers,
                credentials=servers_of,
                token_file=token,
                stop=stop,
                disconnect_grace_ms=30_000,
            )
        )
        await until(lambda: fleet.done() or all(positions.values()), "commits of both partitions")
        assert not fleet.done(), fleet.exception()

        of_client = {"MUSTER_TLS_CA_FILE": certificates.certificate(AUTHORITY)}
        listed = await asyncio.to_thread(cli, cluster.servers, {**of_client, "MUSTER_TOKEN_FILE": str(token)})
        assert (listed.returncode, listed.stdout.split()[-2:]) == (0, ["t", "2"]), listed.stderr
        refused = await asyncio.to_thread(cli, cluster.servers, of_client)
        assert refused.returncode == 1
        assert refused.stderr == (
            "muster: ListTopics was refused: the call shows no token, and this server asks who calls; name a "
            "token with token_file or MUSTER_TOKEN_FILE, or a client certificate\n"
        )
        plain = await asyncio.to_thread(cli, cluster.servers, {"MUSTER_TOKEN_FILE": str(token)})
        assert plain.returncode == 1
        assert "token_file: the token would be sent over plain text" in plain.stderr

        issuer.rotate(keep=True)
        keys.write_bytes(issuer.key_set())
        began_s = made[-1]
        await until(lambda: made[-1] > began_s + 3 * LASTS_S, "tokens that ended three times over")
        await until(more(positions), "more commits")
        ends = ended(caplog)
        assert len(ends) >= 3
        assert set(ends) == {How.AGED.value}

        renewing.cancel()
        await until(lambda: "does not take the token" in caplog.text, "a server that refuses an old token")
        renew()
        renewing = asyncio.create_task(keep_renewing())
        await until(more(positions), "more commits")
        assert {generation for done in positions.values() for generation, _ in done} == {1}
        for done in positions.values():
            assert [position for _, position in done] == list(range(1, len(done) + 1))
        renewing.cancel()
        stop.set()
        await fleet


def more(positions: dict[int, list[tuple[int, int]]]) -> Callable[[], bool]:
    """Says whether there were more commits of each partition since now."""
    before = {number: len(done) for number, done in positions.items()}
    return lambda: all(len(done) > before[number] + 20 for number, done in positions.items())


def ended(caplog: pytest.LogCaptureFixture) -> list[object]:
    """How the streams of this process ended."""
    lines = [line for line in caplog.records if line.msg == "session with %s: %s (%s)"]
    return [line.args[1] for line in lines if isinstance(line.args, tuple)]
