"""The audit of the log, as a Job from the CronJob of the installation."""

from dataclasses import dataclass

from deploy.installation import Installation, wait_for

CRONJOBS = ("muster-audit", "muster-audit-executors")
"""In one pod, and with executors as pods of their own."""


@dataclass(frozen=True, slots=True)
class AuditOutcome:
    """What it said.

    Attributes:
        clean: no promise was broken.
        text: its last line, or what it said if it was not clean.
    """

    clean: bool
    text: str


def run_audit(installation: Installation, cronjob: str) -> AuditOutcome:
    """Starts a CronJob once, now, and waits for its end."""
    kubectl, job = installation.kubectl, f"{cronjob}-e2e"
    kubectl.run("create", "job", job, f"--from=cronjob/{cronjob}")

    def over() -> bool:
        status = kubectl.json("get", "job", job)["status"]
        return bool(status.get("succeeded") or status.get("failed"))

    wait_for(f"{cronjob} has ended", over, 900)
    clean = bool(kubectl.json("get", "job", job)["status"].get("succeeded"))
    lines = kubectl.run("logs", f"job/{job}", "--tail=60").strip().splitlines()
    summary = next((line for line in reversed(lines) if " entries, " in line), "")
    return AuditOutcome(clean, f"{cronjob}: {summary}" if clean else "\n".join(lines))
