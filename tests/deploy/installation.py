"""Muster on a cluster, and the fleet that uses it."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos.history import Event, Histories
from deploy.kubectl import Kubectl, KubectlError, is_ready, name_of
from muster_core.sharding import shard_of

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "muster-test"
PARTS = {"muster-redis": 3, "muster-metadata": 2, "muster-coordinator": 3, "muster-discovery": 2}
FLEET_CONTAINERS = ("a", "b", "c")
WORKERS = 30
GENTLY = ("python", "-c", "import os, sys; os.nice(19); os.execvp(sys.argv[1], sys.argv[1:])")
"""What is asked inside must not take the processor from those who are judged. The images have no `nice`."""


class NotReached(Exception):
    """Something did not come about in time."""


def wait_for(what: str, reached: Callable[[], bool], limit_s: float) -> None:
    """Waits until it is so.

    Raises:
        NotReached: it took longer.
    """
    deadline = time.monotonic() + limit_s
    problem = ""
    while True:
        try:
            if reached():
                return
            problem = ""
        except KubectlError as error:
            problem = f": {error}"
        if time.monotonic() > deadline:
            raise NotReached(f"{what}: not within {limit_s:.0f} s{problem}")
        time.sleep(1)


class Installation:
    """The `test` overlay in its namespace.

    Args:
        folder: gets the histories of the workers.
    """

    def __init__(self, folder: Path) -> None:
        self.kubectl = Kubectl(NAMESPACE)
        self._folder = folder
        self._histories = Histories(folder)

    def install(self) -> None:
        """Applies the overlay, with new passwords, and initialises the log."""
        self.kubectl.run("apply", "--kustomize", str(ROOT / "k8s" / "overlays" / "test"))
        secrets = subprocess.run(
            [ROOT / "k8s" / "secrets", NAMESPACE], capture_output=True, text=True, check=True
        ).stdout
        self.kubectl.run("create", "--filename", "-", given=secrets)
        self.kubectl.run("rollout", "status", "statefulset/muster-redis", "--timeout=300s", limit_s=310)
        self.kubectl.run("exec", "muster-metadata-0", "--", "muster-server", "init")
        self.wait_until_well()

    def uninstall(self) -> None:
        """Removes the namespace with everything in it, volumes included."""
        self.kubectl.run(
            "delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=180s", limit_s=190
        )

    def is_there(self) -> bool:
        """Whether the namespace exists."""
        return bool(self.kubectl.run("get", "namespace", NAMESPACE, "--ignore-not-found").strip())

    def start_fleet(self) -> None:
        """Thirty workers, each with a partition."""
        files = {
            "fleet.py": ROOT / "tests/deploy/fleet.py",
            "history.py": ROOT / "tests/chaos/history.py",
        }
        sources = [f"--from-file={name}={path}" for name, path in files.items()]
        self.kubectl.run("create", "configmap", "fleet", *sources)
        self.kubectl.run("apply", "--filename", str(ROOT / "tests/deploy/fleet.yaml"))
        self.kubectl.run("wait", "pod/fleet", "--for=condition=Ready", "--timeout=120s", limit_s=130)

    def stop_fleet(self) -> None:
        """Closes the workers in order."""
        self.kubectl.run("delete", "pod", "fleet")

    def now_ns(self) -> int:
        """The clock of the histories."""
        program = "import time; print(time.monotonic_ns())"
        return int(self.kubectl.run("exec", "fleet", "--container", "a", "--", "python", "-c", program))

    def events_until(self, at_ns: int) -> list[Event]:
        """What the workers wrote down since the last call, up to a moment."""
        for container in FLEET_CONTAINERS:
            file = f"{container}.jsonl"
            self.kubectl.rest_of("fleet", container, f"/history/{file}", self._folder / file)
        return self._histories.until(at_ns)

    def pods(self, part: str) -> list[str]:
        """Names of the pods of a part, e.g. `muster-redis`."""
        return sorted(name_of(pod) for pod in self.kubectl.pods(f"app.kubernetes.io/name={part}"))

    def cluster(self) -> dict[str, Any]:
        """What `muster cluster` says, asked where no network policy stands between."""
        found: dict[str, Any] = json.loads(
            self.kubectl.run(
                *("exec", "deployment/muster-discovery", "--", *GENTLY),
                *("muster", "cluster", "--servers=127.0.0.1:7400", "--output=json"),
            )
        )
        return found

    def owner_of(self, group: str) -> str:
        """The coordinator that serves a group."""
        cluster = self.cluster()
        return str(cluster["shards"][shard_of(group, cluster["shard_count"])]["node_id"])

    def wait_until_ready(self, limit_s: float = 300) -> None:
        """All pods ready."""
        wait_for("all pods are ready", self._all_ready, limit_s)

    def wait_until_well(self, limit_s: float = 300) -> None:
        """All pods ready, all shards served and spread, all nodes of the log repaired."""
        self.wait_until_ready(limit_s)
        wait_for("all shards are served by all coordinators", self._all_served, limit_s)
        wait_for("all nodes of the log are well", self._log_well, limit_s)

    def _all_ready(self) -> bool:
        pods = self.kubectl.pods("app.kubernetes.io/part-of=muster")
        counts = dict.fromkeys(PARTS, 0)
        for pod in pods:
            name = pod["metadata"]["labels"]["app.kubernetes.io/name"]
            if name in counts:
                counts[name] += 1 if is_ready(pod) else -100
        return counts == PARTS

    def _all_served(self) -> bool:
        cluster = self.cluster()
        live = [node["node_id"] for node in cluster["coordinators"] if node["state"].endswith("LIVE")]
        served = [shard.get("node_id", "") for shard in cluster["shards"] if shard.get("serving")]
        fair = cluster["shard_count"] / PARTS["muster-coordinator"]
        return (
            len(live) == PARTS["muster-coordinator"]
            and len(served) == cluster["shard_count"]
            and all(served.count(node) > fair / 2 for node in live)
        )

    def _log_well(self) -> bool:
        found = self.kubectl.run(
            "exec", "muster-metadata-0", "--", "muster", "doctor", "--nodes", "--output=json"
        )
        nodes = json.loads(found)["nodes"]
        return all(not node["problems"] and not node["lagging_logs"] for node in nodes) and len(nodes) == 3
