"""Runs a command of `muster`."""

import os

from client.client_scripted import ScriptedCluster
from kit import forked


async def cli(scripted: ScriptedCluster | None, *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command whose output goes into files."""
    servers = scripted.address if scripted else "127.0.0.1:1"
    environment = {**os.environ, "MUSTER_SERVERS": servers}
    environment.pop("COLUMNS", None)
    done = await forked.run_beside(["muster", *arguments], environment)
    return done.returncode, done.stdout, done.stderr
