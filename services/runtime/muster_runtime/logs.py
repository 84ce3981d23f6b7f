"""Logs: events with a name and fields, as JSON or for people.

`structlog.get_logger()` is what modules log with: `log.info("shard_loaded", shard=3, records=120)`.
Strings that came from outside are fields, never part of the event's name.
"""

import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping
from time import monotonic
from typing import Any, Literal, TextIO, cast

import structlog
from google.protobuf.message import EncodeError
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from muster_runtime.settings import Settings

VALUE_MAX_CHARACTERS = 256
"""Length of a string in a field; longer ones are cut, and end in `…`."""

ALARMS: Counter[str] = Counter()
"""How many alarms were logged of each event since the process began."""

ITEMS_MAX = 50
"""Items of a list or of pairs in a field; further ones are left out."""

SELDOM_S = 10.0
"""At most how often a line is logged that callers can cause at will."""

_NO_MEMORY = (MemoryError, EncodeError)  # the latter is what protobuf says of it

_TRUSTED_FIELDS = frozenset({"exception", "timestamp", "level"})
_NESTING_MAX = 4


class LogSettings(Settings):
    """How a process logs."""

    model_config = SettingsConfigDict(env_prefix="MUSTER_LOG_")

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level that is logged."
    )
    format: Literal["auto", "json", "human"] = Field(
        default="auto",
        description=(
            "`json`: one object per line; `human`: for people; `auto`: human on a terminal, else json."
        ),
    )


class Seldom:
    """Keeps a line that callers can cause at will from filling the log.

    Args:
        now_s: a clock that never goes back.
    """

    def __init__(self, now_s: Callable[[], float] = monotonic) -> None:
        self._now_s = now_s
        self._logged_s: float | None = None
        self._unlogged = 0

    def count(self) -> int:
        """Counts one; returns how many there were since the last line if a line is due now, else 0."""
        self._unlogged += 1
        now_s = self._now_s()
        if self._logged_s is not None and now_s - self._logged_s < SELDOM_S:
            return 0
        counted, self._unlogged, self._logged_s = self._unlogged, 0, now_s
        return counted


class Unfailing:
    """A stream whose writer never fails: a full disk or a closed pipe costs log lines, not the process.

    Args:
        stream: what is written to.

    Attributes:
        lost: lines that could not be written since the last one that could.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._failed = False
        self.lost = 0

    def write(self, text: str) -> int:
        """Writes, or lets `flush` count the line."""
        try:
            return self._stream.write(text)
        except (OSError, ValueError):  # ValueError: it was closed
            self._failed = True
            return 0

    def flush(self) -> None:
        """Ends a line, or counts it as lost."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._failed = True
        self.lost = self.lost + 1 if self._failed else 0
        self._failed = False

    def count(self, _logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Processor: says in the first line that may be written again how many were not."""
        if self.lost:
            event["lines_lost_before"] = self.lost
        return event


def configure(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Sends the events of this process, and those of libraries that use `logging`, to one stream.

    Args:
        settings: level and format.
        stream: where to write; standard error if absent.
    """
    out = sys.stderr if stream is None else stream
    safe = Unfailing(out)
    human = settings.format == "human" or (settings.format == "auto" and out.isatty())
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    shared: list[Any] = [
        end_without_memory,
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: Any = (
        structlog.dev.ConsoleRenderer(
            colors=out.isatty(), pad_event_to=32, exception_formatter=structlog.dev.plain_traceback
        )
        if human
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    finish: list[Any] = [clean_fields, safe.count]
    if not human:
        finish.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*shared, *finish, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, safe)),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(cast(TextIO, safe))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _name_foreign],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *finish, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.INFO))


def alarm(event: str, **fields: Any) -> None:
    """Logs what an administrator has to look at, because nothing here repairs it.

    Such a line carries `alarm`, which the rules of an alerting system look for; `ALARMS` counts it.
    """
    ALARMS[event] += 1
    structlog.get_logger().error(event, **fields, alarm=True)


def end_without_memory(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Processor: ends the process at once where the error that is logged is for want of memory.

    Whatever catches an error that it did not foresee logs it, our code and that of libraries, and most begin
    again. A process that can get no memory would begin again for ever (docs/safety.md, FST-13).
    """
    error = event.get("exc_info")
    if isinstance(error, tuple):
        error = error[1]
    elif error is True:
        error = sys.exception()
    if isinstance(error, _NO_MEMORY):
        try:
            alarm("memory_exhausted", failed=event.get("event"), error=repr(error))
        finally:
            os._exit(1)
    return event


def clean_fields(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Processor: escapes control characters in every value and cuts long ones."""
    for key, value in event.items():
        if key not in _TRUSTED_FIELDS and key != "exc_info":
            event[key] = clean(value)
    return event


def clean(value: Any, depth: int = 0) -> Any:
    """A value as it may be in a log line: no control characters, bounded in every direction."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return clean_text(value)
    if depth < _NESTING_MAX:
        if isinstance(value, Mapping):
            pairs = list(value.items())[:ITEMS_MAX]
            return {clean_text(str(key)): clean(item, depth + 1) for key, item in pairs}
        if isinstance(value, list | tuple | set | frozenset):
            return [clean(item, depth + 1) for item in list(value)[:ITEMS_MAX]]
    return clean_text(str(value))


def clean_text(text: str, limit: int = VALUE_MAX_CHARACTERS) -> str:
    """A string without control or other unprintable characters, cut to `limit` characters."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    if cut.isprintable():
        return cut
    return "".join(c if c.isprintable() else _escaped(c) for c in cut)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _name_foreign(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Gives a line of the standard library a name of its own; its text becomes a field."""
    record = event.get("_record")
    event["message"] = event["event"]
    event["event"] = "library_log"
    if isinstance(record, logging.LogRecord):
        event["logger"] = record.name
    return event
