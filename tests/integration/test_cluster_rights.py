"""Rights on real processes that know their callers by certificates, and a file of rules that changes."""

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path

import muster
import pytest
from kit import forked
from kit.certificates import AUTHORITY, Certificates
from kit.waiting import until
from muster_server.dev.cluster import DevCluster

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not on the path; install it"),
]

WORKER, OPERATOR, OUTSIDER = "worker", "operator", "outsider"
SPIFFE = "spiffe://cluster.local/ns/shop/sa/worker"
RULES = """
[[rule]]
who = ["spiffe://cluster.local/ns/shop/*"]
verbs = ["join", "commit", "read"]
groups = ["shop-*"]

[[rule]]
who = ["spiffe://cluster.local/ns/shop/*"]
verbs = ["create"]
topics = ["shop-*"]

[[rule]]
who = ["operator"]
verbs = ["admin"]
cluster = true
"""
REFUSED = r"AUTHORIZATION_FAILED|no rule allows"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    issued = Certificates(tmp_path_factory.mktemp("certificates"))
    issued.issue(WORKER, AUTHORITY, names=f"URI:{SPIFFE}")
    for name in (OPERATOR, OUTSIDER):
        issued.issue(name, AUTHORITY, names="")
    return issued


def files_of(issued: Certificates, name: str) -> muster.TlsFiles:
    return muster.TlsFiles(issued.certificate(AUTHORITY), issued.certificate(name), issued.key(name))


def command(issued: Certificates, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    settings = {
        "COLUMNS": "200",
        "MUSTER_TLS_CA_FILE": issued.certificate(AUTHORITY),
        "MUSTER_TLS_CERT_FILE": issued.certificate(name),
        "MUSTER_TLS_KEY_FILE": issued.key(name),
    }
    return forked.run([forked.MUSTER, *arguments], {**os.environ, **settings}, timeout=120)


async def test_workers_do_what_rules_allow_and_lose_what_is_taken_away(
    certificates: Certificates, tmp_path: Path
) -> None:
    rules = tmp_path / "access.toml"
    rules.write_text(RULES)
    settings = {**certificates.settings, "MUSTER_ACCESS_FILE": str(rules)}
    done: list[int] = []

    async def work(p: muster.Partition) -> None:
        position = await p.committed() or 0
        while True:
            position += 1
            await p.commit(position)
            done.append(position)
            await asyncio.sleep(0.02)

    async with DevCluster(tmp_path / "cluster", coordinators=1, settings=settings) as cluster:

        def fleet(name: str, group: str, topic: str) -> "asyncio.Task[None]":
            return asyncio.create_task(
                muster.arun(
                    work,
                    group=group,
                    topic=topic,
                    partitions=1,
                    servers=cluster.servers,
                    credentials=files_of(certificates, name),
                )
            )

        async def ask(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
            return await asyncio.to_thread(
                command, certificates, name, *arguments, "--servers", cluster.servers
            )

        async def findings() -> list[tuple[str, str]]:
            # It has to know metadata to ask coordinators where they answer internal calls.
            folder = str(tmp_path / "cluster")
            doctor = await asyncio.to_thread(
                command, certificates, OPERATOR, "doctor", "-o", "json", "--data", folder
            )
            told = json.loads(doctor.stdout)
            return [(f["result"], f["detail"]) for f in told["findings"] if f["check"] == "rights"]

        worker = fleet(WORKER, "shop-orders", "shop-orders")
        await until(lambda: len(done) > 5, "commits of the worker")
        for name, group in ((WORKER, "others"), (OUTSIDER, "shop-orders")):
            with pytest.raises(muster.MusterError, match=REFUSED):
                async with asyncio.timeout(60):
                    await fleet(name, group, "shop-orders")

        assert "shop-orders" in (await ask(OPERATOR, "topics", "list")).stdout
        assert "shop-orders" not in (await ask(OUTSIDER, "topics", "list")).stdout
        deleted = await ask(WORKER, "topics", "delete", "shop-orders", "--force")
        assert (deleted.returncode, "no rule allows" in deleted.stderr) == (1, True), deleted
        assert await findings() == [("ok", "what no rule allows is refused")]

        rules.write_text(RULES.replace('"join"', '"jion"'))

        async def outdated() -> bool:
            return [result for result, _ in await findings()] == ["warning", "warning", "ok"]

        await until(outdated, "doctor warns of the broken file, of discovery and of the coordinator")
        count = len(done)
        await until(lambda: len(done) > count + 5, "the worker goes on by the rules before it")

        rules.write_text(RULES.replace("shop-*", "shop-x-*"))
        with pytest.raises(muster.MusterError, match=REFUSED):
            async with asyncio.timeout(60):
                await worker
