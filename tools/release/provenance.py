"""Where artefacts come from: a statement of in-toto with SLSA's predicate of provenance, version 1."""

import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from tools.release.checks import commit, digest


def statement(root: Path, artefacts: Mapping[str, str], started: datetime) -> dict[str, object]:
    """The statement about what was built.

    Args:
        root: of the repository.
        artefacts: SHA-256 in hex, by name: files, and images by `image:tag`.
        started: when the build began.

    Returns:
        What is to be written as JSON. It is not signed: who publishes signs it.
    """
    locks = sorted(root.glob("requirements*.lock"))
    sources: list[dict[str, object]] = [{"uri": "git+muster", "digest": {"gitCommit": commit(root)}}]
    sources += [{"uri": f"file:{lock.name}", "digest": {"sha256": digest(lock)}} for lock in locks]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": found}} for name, found in sorted(artefacts.items())],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:muster:x-release:v1",
                "externalParameters": {"command": "./x release --dry-run"},
                "internalParameters": {"python": platform.python_version(), "machine": platform.machine()},
                "resolvedDependencies": sources,
            },
            "runDetails": {
                "builder": {"id": "urn:muster:builder:local"},
                "metadata": {
                    "startedOn": _instant(started),
                    "finishedOn": _instant(datetime.now(UTC)),
                },
            },
        },
    }


def _instant(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
