"""TLS of the client's connections: its certificate files, which may be renewed while it runs."""

import asyncio
import logging
import os
import ssl
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self, TypeAlias

import grpc

from muster._clock import boot_ms
from muster._errors import SettingsError

log = logging.getLogger("muster")

LOOK_MS = 1_000
"""How often it is checked whether a file has changed."""
_PROBE_S = 2.0
NO_TLS = "the server does not speak TLS, and this client does (MUSTER_TLS_…)"
"""What is said of a server that does not."""
_Stamp: TypeAlias = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files for encrypted connections, all PEM. When one changes, new connections are made with the new one.

    Attributes:
        ca_file: certificates that servers are checked against; None: the public ones that gRPC brings.
        cert_file: certificate chain of this client, for servers that ask for one; None: it has none.
        key_file: private key of that certificate.

    Raises:
        SettingsError: only one of certificate and key is given, or something is no path.
    """

    ca_file: str | os.PathLike[str] | None = None
    cert_file: str | os.PathLike[str] | None = None
    key_file: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name in _NAMES:
            file = getattr(self, name)
            if file is not None and (not isinstance(file, str | os.PathLike) or not os.fspath(file)):
                raise SettingsError(name, f"must be the path of a file, not {file!r}")
        if (self.cert_file is None) != (self.key_file is None):
            missing = "cert_file" if self.cert_file is None else "key_file"
            raise SettingsError(missing, "a certificate and its key must be given together")

    @classmethod
    def from_environment(cls) -> Self | None:
        """The files that `MUSTER_TLS_CA_FILE`, `…_CERT_FILE` and `…_KEY_FILE` name; None: there are none.

        Raises:
            SettingsError: only one of certificate and key is given.
        """
        names = {name: os.environ.get(_variable(name)) or None for name in _NAMES}
        return cls(**names) if any(names.values()) else None

    def read(self) -> dict[str, bytes]:
        """The content of the files, by field: grpc ends the process where a key is cut off.

        Raises:
            SettingsError: a file cannot be read, or they do not fit together; names it.
        """
        contents = self._contents()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        name = "ca_file"
        try:
            if self.ca_file is not None:
                context.load_verify_locations(self.ca_file)
            name = "cert_file"
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file, password="")
        except (OSError, ValueError) as error:
            what = "certificates" if name == "ca_file" else "the certificate of key_file"
            raise SettingsError(name, f"it does not hold {what}, as PEM without password: {error}") from None
        if contents != self._contents():
            raise SettingsError(name, "the files are being written")
        return contents

    def _contents(self) -> dict[str, bytes]:
        contents = {}
        for name in _NAMES:
            file = getattr(self, name)
            if file is not None:
                try:
                    contents[name] = Path(file).read_bytes()
                except OSError as error:
                    text = f"{os.fspath(file)!r} cannot be read: {error.strerror} ({_variable(name)})"
                    raise SettingsError(name, text) from None
        return contents

    def stamp(self) -> _Stamp:
        """What changes when a file does; shorter when a file is missing."""
        stamps = []
        for name in _NAMES:
            file = getattr(self, name)
            if file is not None:
                try:
                    found = Path(file).stat()
                except OSError:
                    continue
                stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
        return tuple(stamps)


_NAMES = tuple(field.name for field in fields(TlsFiles))


def _variable(name: str) -> str:
    return f"MUSTER_TLS_{name.upper()}"


class RenewedCredentials:
    """The credentials of new connections, made of files that may be renewed.

    Args:
        files: where the certificates are.

    Attributes:
        files: the same.

    Raises:
        SettingsError: a file cannot be read.
    """

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self._stamp = files.stamp()
        self._refused: _Stamp = ()
        self._looked_ms = boot_ms()
        self.current = _credentials(files.read())

    def renew(self) -> bool:
        """Reads files that have changed; returns whether connections should be made anew.

        Files that cannot be read leave the credentials as they are, with a warning.
        """
        now_ms = boot_ms()
        if now_ms - self._looked_ms < LOOK_MS:
            return False
        self._looked_ms = now_ms
        stamp = self.files.stamp()
        if stamp == self._stamp:
            return False
        try:
            self.current = _credentials(self.files.read())
        except SettingsError as error:
            if stamp != self._refused:
                log.warning("new certificates are not used: %s", error)
            self._refused = stamp
            return False
        self._stamp = stamp
        log.info("certificates were renewed; connections made from now on use them")
        return True


def _credentials(contents: dict[str, bytes]) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        contents.get("ca_file"), contents.get("key_file"), contents.get("cert_file")
    )


def not_trusted(reason: str) -> str:
    """What is said of a server whose certificate this client does not trust."""
    return f"the server's certificate is not trusted (MUSTER_TLS_CA_FILE): {reason}"


async def why_not(address: str, files: TlsFiles | None) -> str:
    """Why a server that can be reached gives this client no connection; empty: not known. Takes up to 2 s.

    For a caller of whom a server hung up, or of whom gRPC tells the last of several addresses alone: it takes
    `localhost` for `::1`, too, where mostly nobody listens.

    Args:
        address: of the server.
        files: what this client connects with; None: plain text.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if files is None or files.ca_file is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        if files is not None and files.ca_file is not None:
            context.load_verify_locations(files.ca_file)
        async with asyncio.timeout(_PROBE_S):
            _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    except ssl.SSLCertVerificationError as error:
        return not_trusted(error.verify_message)
    except ssl.SSLError as error:
        return "" if files is None or error.reason != "WRONG_VERSION_NUMBER" else NO_TLS
    except (OSError, TimeoutError):
        return ""
    writer.close()
    if files is None:
        return "the server speaks TLS, and this client does not (MUSTER_TLS_CA_FILE)"
    if files.cert_file is None:
        return "it may ask for a client certificate (MUSTER_TLS_CERT_FILE, MUSTER_TLS_KEY_FILE)"
    return "it may not trust the certificate of this client (MUSTER_TLS_CERT_FILE)"
