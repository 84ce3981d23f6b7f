"""Certificates for the server and for channels between services."""

from pathlib import Path

import grpc
from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from muster_runtime.settings import Settings, SettingsError


class TlsSettings(Settings):
    """Where the certificates are. Without any of them connections are plain text.

    With `cert_file` and `key_file` the server speaks TLS only, and channels present that certificate. With
    `ca_file` channels are encrypted and servers checked against it. Files are read once, at start.
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
        pair = (_read("MUSTER_TLS_KEY_FILE", self.key_file), _read("MUSTER_TLS_CERT_FILE", self.cert_file))
        authority = None if self.ca_file is None else _read("MUSTER_TLS_CA_FILE", self.ca_file)
        return grpc.ssl_server_credentials([pair], authority, self.require_client_certificate)

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


def _read(variable: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SettingsError(
            [f"{variable}={str(file)!r}: the file cannot be read: {error.strerror}"]
        ) from None
