"""An embedded, initialised log for a process that runs everything."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from muster_runtime.errors import StartupError

from muster_server.dev.redis_nodes import RedisNodes
from muster_server.initialise import initialise_log


@asynccontextmanager
async def embedded_log(folder: Path) -> AsyncIterator[str]:
    """A context with one embedded server on a folder, whose log is initialised; its value is the URL."""
    try:
        nodes = RedisNodes(folder, 1)
    except OSError as error:
        raise StartupError(f"the folder {folder} cannot be used: {error}") from error
    await nodes.start()
    try:
        await initialise_log(nodes.url, 50)
        yield nodes.url
    finally:
        await nodes.stop()
