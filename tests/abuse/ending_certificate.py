"""The certificate of a cluster's processes ends within a day, and nobody has looked.

Must hold: the processes say so, in their logs and to who reads their metrics, while there is time.
"""

import asyncio
import json
import tempfile
import urllib.request
from pathlib import Path

from kit.certificates import AUTHORITY, SERVER, Certificates
from kit.programs import Broken, report, run
from muster_server.dev.cluster import DevCluster

LOOKED_S = 8.0
LEFT = 'muster_certificate_left_seconds{of="own"'


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="muster-abuse-") as made:
        certificates = Certificates(Path(made) / "certificates")
        certificates.issue(SERVER, AUTHORITY, days=1, age_days=89)
        settings = {**certificates.settings, "MUSTER_TELEMETRY_PROMETHEUS_LISTEN": "127.0.0.1:0"}
        async with DevCluster(Path(made) / "c", coordinators=1, settings=settings) as cluster:
            await asyncio.sleep(LOOKED_S)
            told = {role.name: await asyncio.to_thread(tells, cluster, role.name) for role in cluster.roles}
    if silent := [name for name, said in told.items() if not said]:
        raise Broken(f"nothing of it in the logs and metrics of {', '.join(silent)}")
    report(f"all of {', '.join(told)} tell that their certificate ends")


def tells(cluster: DevCluster, name: str) -> bool:
    """Whether a process says when its certificate ends."""
    logs = cluster.folder / "logs"
    port = json.loads((logs / f"{name}.ready").read_text())["metrics"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        metrics = [line for line in answer.read().decode().splitlines() if line.startswith(LEFT)]
    told = [float(line.split()[-1]) <= 86_400 for line in metrics]
    return told == [True] and "certificate_ends" in (logs / f"{name}.log").read_text()


if __name__ == "__main__":
    run(main)
