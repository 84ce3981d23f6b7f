"""What this library says it is."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version

LIBRARY = "muster-python"


@cache
def client_version() -> str:
    """The library and its version, as members say it to coordinators: `muster-python/0.2.0`."""
    try:
        return f"{LIBRARY}/{version('muster-client')}"
    except PackageNotFoundError:  # run from a folder of sources
        return f"{LIBRARY}/unknown"
