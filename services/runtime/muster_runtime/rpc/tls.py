"""Certificates for the server and for channels between services."""

import logging
from pathlib import Path

import grpc
from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from muster_runtime.settings import Settings, SettingsError

log = logging.getLogger(__name__)


class TlsSettings(Settings):
    """Where the certificates are. Without any of them connections are plain text.

    With `cert_file` and `key_file` the server speaks TLS only, and channels present that certificate. With
    `ca_file` channels are encrypted and servers checked against it. The server reads renewed files for the
    connections that it accepts from then on; channels keep what was read at the start.
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

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """What the server listens with; None: plain text.

        Raises:
            SettingsError: a file cannot be read.
        """
        if self.cert_file is None or self.key_file is None:
            return None
        renewed = _ServerFiles(self.key_file, self.cert_file, self.ca_file)
        return grpc.dynamic_ssl_server_credentials(
            renewed.read(),
            renewed.changed,  # type: ignore[arg-type]  # None: as before; the stubs lack it
            self.require_client_certificate,
        )

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """What channels connect with; None: plain text.

        Raises:
            SettingsError: a file cannot be read.
        """
        if self.ca_file is None and self.cert_file is None:
            return None
        return grpc.ssl_channel_credentials(
            root_certificates=None if self.ca_file is None else _read("MUSTER_TLS_CA_FILE", self.ca_file),
            private_key=None if self.key_file is None else _read("MUSTER_TLS_KEY_FILE", self.key_file),
            certificate_chain=None
            if self.cert_file is None
            else _read("MUSTER_TLS_CERT_FILE", self.cert_file),
        )


class _ServerFiles:
    """The files of a server, read again when one of them has changed."""

    def __init__(self, key: Path, cert: Path, ca: Path | None) -> None:
        self._key = key
        self._cert = cert
        self._ca = ca
        self._stamp = self._look()

    def read(self) -> grpc.ServerCertificateConfiguration:
        """What they hold now.

        Raises:
            SettingsError: a file cannot be read.
        """
        pair = (_read("MUSTER_TLS_KEY_FILE", self._key), _read("MUSTER_TLS_CERT_FILE", self._cert))
        authority = None if self._ca is None else _read("MUSTER_TLS_CA_FILE", self._ca)
        return grpc.ssl_server_certificate_configuration([pair], authority)

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """What they hold if that has changed since it was read, else None. grpc asks at each connection."""
        stamp = self._look()
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            renewed = self.read()
        except SettingsError as error:
            log.warning(
                "new certificates are not used: %s", error, extra={"event": "certificates_unreadable"}
            )
            return None
        log.info("the certificates were renewed", extra={"event": "certificates_renewed"})
        return renewed

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(file) for file in (self._key, self._cert, self._ca) if file is not None)


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
