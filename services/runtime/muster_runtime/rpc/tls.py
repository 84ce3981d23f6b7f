"""Certificates for the server and for channels between services."""

import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import structlog
from pydantic import Field, PrivateAttr, model_validator
from pydantic_settings import SettingsConfigDict

from muster_runtime.settings import Settings, SettingsError

log = structlog.get_logger()


class TlsSettings(Settings):
    """Where the certificates are. Without any of them connections are plain text.

    With `cert_file` and `key_file` the server speaks TLS only, and channels present that certificate. With
    `ca_file` channels are encrypted and servers checked against it. Renewed files count for connections that
    are made from then on.
    """

    model_config = SettingsConfigDict(env_prefix="MUSTER_TLS_")

    cert_file: Path | None = Field(default=None, description="Certificate chain of this process, PEM.")
    key_file: Path | None = Field(default=None, description="Private key of that certificate, PEM.")
    ca_file: Path | None = Field(
        default=None, description="Certificates that peers are checked against, PEM."
    )
    require_client_certificate: bool = Field(
        default=False,
        description="Whether the server refuses clients without a certificate signed by the CA.",
    )

    _files: "_Files" = PrivateAttr()

    @model_validator(mode="after")
    def _complete(self) -> "TlsSettings":
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("MUSTER_TLS_CERT_FILE and MUSTER_TLS_KEY_FILE must be set together")
        if self.require_client_certificate and (self.ca_file is None or self.cert_file is None):
            raise ValueError(
                "MUSTER_TLS_REQUIRE_CLIENT_CERTIFICATE needs MUSTER_TLS_CA_FILE, MUSTER_TLS_CERT_FILE and "
                "MUSTER_TLS_KEY_FILE"
            )
        return self

    def model_post_init(self, _: object) -> None:
        """Prepares to read the files; none is read yet."""
        self._files = _Files(
            {
                self.variable(name): file
                for name in ("key_file", "cert_file", "ca_file")
                if (file := getattr(self, name)) is not None
            }
        )

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """What the server listens with; None: plain text.

        Raises:
            SettingsError: a file cannot be read.
        """
        if self.cert_file is None:
            return None
        return grpc.dynamic_ssl_server_credentials(
            self._for_server(self._files.read()),
            self._renewed_for_server(),
            self.require_client_certificate,
        )

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """What channels connect with; None: plain text.

        Raises:
            SettingsError: a file cannot be read, and never could.
        """
        if self.ca_file is None and self.cert_file is None:
            return None
        content = self._files.read()
        return grpc.ssl_channel_credentials(
            root_certificates=content.get(self.variable("ca_file")),
            private_key=content.get(self.variable("key_file")),
            certificate_chain=content.get(self.variable("cert_file")),
        )

    def renewals(self) -> int:
        """How often the files have changed since they were first read."""
        return self._files.renewals()

    def _for_server(self, content: dict[str, bytes]) -> grpc.ServerCertificateConfiguration:
        pair = (content[self.variable("key_file")], content[self.variable("cert_file")])
        return grpc.ssl_server_certificate_configuration([pair], content.get(self.variable("ca_file")))

    def _renewed_for_server(self) -> Callable[[], grpc.ServerCertificateConfiguration]:
        """What grpc asks at each connection: the files if they changed since it asked last, else None."""
        served = self._files.renewals()

        def renewed() -> Any:
            nonlocal served
            before, served = served, self._files.renewals()
            return self._for_server(self._files.read()) if served != before else None

        return renewed


class _Files:
    """Files that are read again when one of them has changed; from any thread.

    Args:
        paths: where they are, by the variables that name them.
    """

    def __init__(self, paths: dict[str, Path]) -> None:
        self._paths = paths
        self._lock = threading.Lock()
        self._content: dict[str, bytes] | None = None
        self._stamp: object = None
        self._refused: object = None
        self._renewals = 0

    def read(self) -> dict[str, bytes]:
        """What they hold; what they held before where they cannot be read any more, with a warning.

        Raises:
            SettingsError: one cannot be read, and never could.
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
                        log.warning("certificates_not_used", problem=" ".join(error.problems))
                    self._refused = stamp
                    return self._content
                self._renewals += 1
                log.info("certificates_renewed")
            self._stamp = stamp
            return self._content

    def _checked(self) -> dict[str, bytes]:
        """What they hold now: grpc ends the process where a key is cut off, or refuses each connection.

        Raises:
            SettingsError: one cannot be read, or they do not fit together.
        """
        content = {name: _read(name, path) for name, path in self._paths.items()}
        key, cert, ca = (self._paths.get(f"MUSTER_TLS_{name}_FILE") for name in ("KEY", "CERT", "CA"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        wrong = "MUSTER_TLS_CA_FILE holds no certificates, as PEM"
        try:
            if ca is not None:
                context.load_verify_locations(ca)
            wrong = "MUSTER_TLS_CERT_FILE and MUSTER_TLS_KEY_FILE hold no certificate with its key, as PEM"
            if cert is not None:
                context.load_cert_chain(cert, key, password="")
        except (OSError, ValueError) as error:
            raise SettingsError([f"{wrong}: {error}"]) from None
        if content != {name: _read(name, path) for name, path in self._paths.items()}:
            raise SettingsError(["the files of MUSTER_TLS_… are being written"])
        return content

    def renewals(self) -> int:
        """How often they have changed since they were first read."""
        if self._content is not None:
            self.read()
        return self._renewals


def _stamp(file: Path) -> tuple[int, int, int] | None:
    """What changes when a file does; None: it is not there."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(variable: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SettingsError(
            [f"{variable}={str(file)!r}: the file cannot be read: {error.strerror}"]
        ) from None
