"""Files that are renewed while a process runs: certificates, tokens."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from muster_runtime.settings import SettingsError

log = structlog.get_logger()

MAX_BYTES = 1 << 20
"""What a file may hold."""


class RenewedFiles:
    """Files that are read again when one of them has changed; from any thread.

    Args:
        what: they hold, in one word, for the log.
        paths: where they are, by the variables that name them.
        check: raises `SettingsError` about content, by those variables, that cannot be used.
    """

    def __init__(
        self, what: str, paths: dict[str, Path], check: Callable[[Mapping[str, bytes]], None]
    ) -> None:
        self._what = what
        self._paths = paths
        self._check = check
        self._lock = threading.Lock()
        self._content: dict[str, bytes] | None = None
        self._stamp: object = None
        self._refused: object = None
        self._renewals = 0

    def read(self) -> dict[str, bytes]:
        """What they hold; what they held before where they cannot be used any more, with a warning.

        Raises:
            SettingsError: one cannot be used, and never could.
        """
        with self._lock:
            stamp = [_stamp(path) for path in self._paths.values()]
            if self._content is None:
                self._content = self._checked()
            elif stamp != self._stamp:
                try:
                    self._content = self._checked()
                except SettingsError as error:
                    if stamp != self._refused:
                        log.warning(f"{self._what}_not_used", problem="; ".join(error.problems))
                    self._refused = stamp
                    return self._content
                self._renewals += 1
                log.info(f"{self._what}_renewed")
            self._stamp, self._refused = stamp, None
            return self._content

    def renewals(self) -> int:
        """How often they have changed since they were first read."""
        if self._content is not None:
            self.read()
        return self._renewals

    @property
    def refuses(self) -> bool:
        """Whether the files, as they were when they were last looked at, cannot be used."""
        return self._refused is not None

    def _checked(self) -> dict[str, bytes]:
        content = self._read()
        self._check(content)
        if content != self._read():
            raise SettingsError([f"the files of {', '.join(self._paths)} are being written"])
        return content

    def _read(self) -> dict[str, bytes]:
        return {variable: _read(variable, path) for variable, path in self._paths.items()}


def _stamp(file: Path) -> tuple[int, int, int] | None:
    """What changes when a file does; None: it is not there."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(variable: str, file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise SettingsError(
            [f"{variable}={str(file)!r}: the file cannot be read: {error.strerror}"]
        ) from None
    if len(content) > MAX_BYTES:
        raise SettingsError([f"{variable}={str(file)!r}: the file is larger than {MAX_BYTES:,} bytes"])
    return content
