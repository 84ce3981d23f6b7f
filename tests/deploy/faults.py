"""What is done to the cluster while the workers commit."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from deploy.installation import Installation, wait_for
from deploy.kubectl import KubectlError

BAR_MS = 1_500
"""The longest that a worker may be without an acknowledged commit."""

COORDINATOR_UPDATE_BAR_MS = 500
"""The same while coordinators are restarted in order, which hand their shards over."""

DRAIN_LIMIT_S = 40
QUIET_S = 10

_KILL = """
import os, pathlib, signal
for process in pathlib.Path("/proc").glob("[0-9]*"):
    if b"muster-server\\0--roles" in (process / "cmdline").read_bytes():
        os.kill(int(process.name), signal.SIGKILL)
"""

MAJORITY = 2

Injection = Callable[[Installation], str]
"""Does it, and returns when it is done; gives what else is worth knowing."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the table.

    Attributes:
        name: what is done, in words.
        inject: does it.
        bar_ms: the longest that a worker may be without an acknowledged commit.
    """

    name: str
    inject: Injection
    bar_ms: int = BAR_MS


def all_faults(installation: Installation) -> Iterator[Fault]:
    """Every fault, in order; first nothing, for comparison. Pods are looked up when their turn comes."""
    yield Fault("nothing, for comparison", _nothing)
    for part in ("muster-coordinator", "muster-metadata", "muster-discovery", "muster-redis"):
        for pod in installation.pods(part):
            yield Fault(f"{pod} deleted by force", _delete(pod))
    yield Fault("muster-redis-1 deleted by force, with its volume", _delete_with_volume("muster-redis-1"))
    for attempt in ("", ", again"):
        yield Fault(f"process of an owning coordinator killed{attempt}", _kill_owner)
    yield Fault(
        "rolling update of the coordinators",
        _rolling_update("statefulset/muster-coordinator"),
        COORDINATOR_UPDATE_BAR_MS,
    )
    yield Fault("rolling update of metadata", _rolling_update("statefulset/muster-metadata"))
    yield Fault("rolling update of discovery", _rolling_update("deployment/muster-discovery"))
    yield Fault("rolling update of the Redis nodes", _rolling_update("statefulset/muster-redis"))
    yield Fault("machine drained", _drain)


def _nothing(_: Installation) -> str:
    time.sleep(QUIET_S)
    return ""


def _delete(pod: str) -> Injection:
    def inject(installation: Installation) -> str:
        installation.kubectl.run("delete", "pod", pod, "--grace-period=0", "--force")
        return ""

    return inject


def _delete_with_volume(pod: str) -> Injection:
    def inject(installation: Installation) -> str:
        kubectl = installation.kubectl
        claim = f"data-{pod}"
        before = kubectl.json("get", "persistentvolumeclaim", claim)["spec"]["volumeName"]
        kubectl.run("delete", "persistentvolumeclaim", claim, "--wait=false")
        kubectl.run("delete", "pod", pod, "--grace-period=0", "--force")

        def bound_anew() -> bool:
            spec = kubectl.json("get", "persistentvolumeclaim", claim)["spec"]
            return bool(spec.get("volumeName", before) != before)

        wait_for(f"{pod} has a new volume", bound_anew, 120)
        return "a new, empty volume"

    return inject


def _kill_owner(installation: Installation) -> str:
    owner = installation.owner_of("e2e-0")
    before = _restarts(installation, owner)
    installation.kubectl.run("exec", owner, "--", "python", "-c", _KILL)
    wait_for(f"{owner} was restarted", lambda: _restarts(installation, owner) > before, 60)
    return owner


def _restarts(installation: Installation, pod: str) -> int:
    return int(installation.kubectl.json("get", "pod", pod)["status"]["containerStatuses"][0]["restartCount"])


def _rolling_update(what: str) -> Injection:
    def inject(installation: Installation) -> str:
        kubectl = installation.kubectl
        kubectl.run("rollout", "restart", what)
        kubectl.run("rollout", "status", what, "--timeout=300s", limit_s=310)
        return ""

    return inject


def _drain(installation: Installation) -> str:
    """Drains the machine of a Redis node; where it is the only one, the budgets must stop that half way."""
    kubectl = installation.kubectl
    machine = kubectl.json("get", "pod", "muster-redis-0")["spec"]["nodeName"]
    try:
        kubectl.run(
            *("drain", machine, "--pod-selector=app.kubernetes.io/part-of=muster"),
            *("--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={DRAIN_LIMIT_S}s"),
            limit_s=DRAIN_LIMIT_S + 30,
        )
        note = "done"
    except KubectlError as error:
        if "disruption budget" not in str(error):
            raise
        note = "stopped by the budgets"
    finally:
        left = kubectl.json("get", "statefulset", "muster-redis")["status"].get("readyReplicas", 0)
        kubectl.run("uncordon", machine)
    if left < MAJORITY:
        raise KubectlError(f"the drain left {left} Redis nodes: the budget did not hold")
    return f"{note}; {left} Redis nodes stayed"
