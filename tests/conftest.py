"""What holds for all tests."""

import logging
from collections.abc import Iterator
from importlib.util import find_spec

import pytest


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """A command that runs within a test sets up the logs of the process: for that test alone."""
    if find_spec("structlog") is None:  # the client's tests also run without the servers
        yield
        return
    import structlog

    root = logging.getLogger()
    handlers, level, configured = root.handlers[:], root.level, structlog.is_configured()
    before = structlog.get_config()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    if configured:
        structlog.configure(**before)
    else:
        structlog.reset_defaults()
