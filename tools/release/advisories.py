"""`./x advisories`: known vulnerabilities of what the locks pin, found by pip-audit."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements-server.lock", "requirements-audit.lock", "requirements.lock")
EXIT_VULNERABLE, EXIT_NOT_CHECKED = 1, 3


def judge(report: str) -> tuple[list[str], list[str]]:
    """Reads pip-audit's report in JSON.

    Returns:
        What is vulnerable, and what was not looked up. pip-audit itself ends well where its source knows none
        of the packages, as behind a mirror of an index: that is no verdict.
    """
    found = json.loads(report)["dependencies"]
    vulnerable = [
        f"{one['name']} {one['version']}: {bug['id']}, fixed in {', '.join(bug['fix_versions']) or 'none'}"
        for one in found
        for bug in one.get("vulns", ())
    ]
    return vulnerable, [one["name"] for one in found if "skip_reason" in one]


def look_up(lock: Path) -> tuple[list[str], list[str]]:
    """The verdict about one lock; whatever keeps pip-audit from one is `not looked up`."""
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--requirement",
        str(lock),
        "--require-hashes",
        "--disable-pip",
    ]
    command += ["--format", "json", "--progress-spinner", "off", "--timeout", "15"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    try:
        return judge(done.stdout)
    except (json.JSONDecodeError, KeyError):
        lines = done.stderr.strip().splitlines() or ["pip-audit said nothing"]
        return [], [f"all of it ({lines[-1][:200]})"]


def main() -> int:
    """Exit code 1: something is vulnerable; 3: not everything could be looked up, so there is no verdict."""
    code = 0
    for name in LOCKS:
        vulnerable, unknown = look_up(ROOT / name)
        for problem in vulnerable:
            print(f"{name}: VULNERABLE: {problem}")
            code = EXIT_VULNERABLE
        if unknown:
            print(f"{name}: NOT CHECKED: {len(unknown)} packages, {', '.join(unknown[:3])}, …")
            code = code or EXIT_NOT_CHECKED
        elif not vulnerable:
            print(f"{name}: nothing known against it")
    return code


if __name__ == "__main__":
    sys.exit(main())
