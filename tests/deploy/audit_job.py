"""The audit of the log, as a Job from the CronJob of the installation."""

from dataclasses import dataclass

from deploy.installation import Installation, wait_for

JOB = "audit-e2e"


@dataclass(frozen=True, slots=True)
class AuditOutcome:
    """What it said.

    Attributes:
        clean: no promise was broken.
        text: its last line.
    """

    clean: bool
    text: str


def run_audit(installation: Installation) -> AuditOutcome:
    """Starts it once and waits for its end."""
    kubectl = installation.kubectl
    kubectl.run("create", "job", JOB, "--from=cronjob/muster-audit")

    def over() -> bool:
        status = kubectl.json("get", "job", JOB)["status"]
        return bool(status.get("succeeded") or status.get("failed"))

    wait_for("the audit has ended", over, 600)
    clean = bool(kubectl.json("get", "job", JOB)["status"].get("succeeded"))
    lines = kubectl.run("logs", f"job/{JOB}", "--tail=40").strip().splitlines()
    return AuditOutcome(clean, lines[-1] if clean and lines else "\n".join(lines))
