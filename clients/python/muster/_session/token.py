"""The token that says who this client is: in a file, which may be renewed while it runs."""

import logging
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeAlias

from muster._clock import boot_ms
from muster._errors import SettingsError

log = logging.getLogger("muster")

LOOK_MS = 1_000
"""How often it is checked whether the file has changed."""
LONGEST = 16_384
"""Characters that a token may have; servers take headers of 8 KiB unless they are set otherwise."""
FILE_VARIABLE, PLAIN_VARIABLE = "MUSTER_TOKEN_FILE", "MUSTER_TOKEN_PLAIN_TEXT"

_SAY_MS = 10_000
_YES, _NO = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "")
_Stamp: TypeAlias = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class TokenFile:
    """The file of a token, which says who this client is. Renew it in one step: write another, rename it.

    Attributes:
        path: of the file, which holds the token alone.
        plain_text: whether the token may be sent over connections without TLS, where whoever listens reads
            it; for tests, and where something else encrypts.

    Raises:
        SettingsError: something is no path.
    """

    path: str | os.PathLike[str]
    plain_text: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike) or not os.fspath(self.path):
            raise SettingsError("token_file", f"must be the path of a file, not {self.path!r}")

    @classmethod
    def of(cls, given: "str | os.PathLike[str] | TokenFile | None") -> "TokenFile | None":
        """What was given as `token_file`; None: what the environment says.

        Raises:
            SettingsError: it is no path, or a variable has a wrong value.
        """
        if isinstance(given, TokenFile):
            return given
        return cls.from_environment() if given is None else cls(given, _plain_text())

    @classmethod
    def from_environment(cls) -> Self | None:
        """The file that `MUSTER_TOKEN_FILE` names; None: there is none.

        Raises:
            SettingsError: MUSTER_TOKEN_PLAIN_TEXT is neither true nor false.
        """
        path = os.environ.get(FILE_VARIABLE)
        return cls(path, _plain_text()) if path else None

    def read(self) -> str:
        """The token.

        Raises:
            SettingsError: the file cannot be read, or holds none.
        """
        name = os.fspath(self.path)
        try:
            with Path(name).open("rb") as stream:
                content = stream.read(LONGEST + 1_024)
        except OSError as error:
            text = f"{name!r} cannot be read: {error.strerror} ({FILE_VARIABLE})"
            raise SettingsError("token_file", text) from None
        token = content.strip()
        if not token or len(token) > LONGEST or any(not 0x21 <= byte <= 0x7E for byte in token):
            text = f"{name!r} must hold one token, of at most {LONGEST:,} visible ASCII characters"
            raise SettingsError("token_file", f"{text} ({FILE_VARIABLE})")
        return token.decode("ascii")

    def stamp(self) -> _Stamp:
        """What changes when the file does; None: it is not there."""
        try:
            found = Path(self.path).stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def _plain_text() -> bool:
    value = os.environ.get(PLAIN_VARIABLE, "").lower()
    if value not in (*_YES, *_NO):
        raise SettingsError(PLAIN_VARIABLE, f"must be true or false, not {value!r}")
    return value in _YES


class RenewedToken:
    """The token as calls show it, read again when its file has changed; from any thread.

    Args:
        file: where it is.

    Raises:
        SettingsError: the file cannot be used.
    """

    def __init__(self, file: TokenFile) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._stamp = file.stamp()
        self._refused: object = self._stamp
        self._looked_ms = boot_ms()
        self._said_ms: int | None = None
        self._worked = False
        self._token = file.read()

    def current(self, *, now: bool = False) -> str:
        """The token; with `now` it is looked whether the file has changed, also if that was done just now."""
        with self._lock:
            if now or boot_ms() - self._looked_ms >= LOOK_MS:
                self._looked_ms = boot_ms()
                self._renew()
            return self._token

    def works(self) -> None:
        """A server has taken it."""
        self._worked = True

    def outlives(self, sent: str, reason: str) -> bool:
        """Whether to try again after a server did not take what was sent.

        So it is if the file has another one by now, or if a server has taken one before: whoever renews the
        file may be late. A file whose token no server has ever taken is wrong.
        """
        token = self.current(now=True)
        if token == sent and not self._worked:
            return False
        if token == sent and (self._said_ms is None or boot_ms() - self._said_ms >= _SAY_MS):
            self._said_ms = boot_ms()
            log.warning(
                "a server does not take the token of %s any more (%s); trying until the file has another",
                os.fspath(self._file.path),
                reason,
            )
        return True

    def _renew(self) -> None:
        stamp = self._file.stamp()
        if stamp == self._stamp:
            return
        try:
            self._token = self._file.read()
        except SettingsError as error:
            if stamp != self._refused:
                log.warning("the new token is not used: %s", error)
            self._refused = stamp
            return
        self._stamp = stamp
        log.info("the token was renewed; calls and streams from now on show it")
