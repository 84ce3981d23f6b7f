"""The servers of a cluster in this process, which come with another distribution."""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Protocol

from muster._errors import MusterError
from muster.testing._wire import Listening

ENTRY_POINTS = "muster.testing"


class Servers(Listening, Protocol):
    """Discovery, and one coordinator at a time, on one shard with its log in memory."""

    @property
    def servers(self) -> str:
        """Address of discovery."""

    @property
    def coordinator(self) -> str | None:
        """Address of the coordinator; None: there is none now."""

    @property
    def hosts(self) -> frozenset[tuple[str, str]]:
        """Group and host of each member, as the coordinator knows them."""

    async def start_coordinator(self) -> None:
        """A new coordinator takes over; the one before it must have been killed."""

    def kill_coordinator(self) -> None:
        """The coordinator is gone, without a word to anybody."""

    def stop(self) -> None:
        """Ends everything."""


def make_servers(boot_ms: Callable[[], int], wall_ms: Callable[[], int]) -> Servers:
    """Servers on these clocks.

    Raises:
        MusterError: the extra `testing` is not installed.
    """
    for found in entry_points(group=ENTRY_POINTS, name="servers"):
        make: Any = found.load()
        servers: Servers = make(boot_ms, wall_ms)
        return servers
    raise MusterError("a cluster in this process needs its servers: pip install 'muster-client[testing]'")
