"""Certificates for the server and for channels between services."""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import grpc
from pydantic import Field, PrivateAttr, model_validator
from pydantic_settings import SettingsConfigDict

from muster_runtime.rpc._files import RenewedFiles
from muster_runtime.settings import Settings, SettingsError


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
    min_version: Literal["1.2", "1.3"] = Field(
        default="1.3",
        description=(
            "The lowest version of TLS that gRPC speaks in this process, as server and in its own channels. "
            "It is read before all else, from the environment alone."
        ),
    )

    _files: RenewedFiles = PrivateAttr()

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
        names = ("key_file", "cert_file", "ca_file")
        paths = {self.variable(name): file for name in names if (file := getattr(self, name)) is not None}
        self._files = RenewedFiles("certificates", paths, self._check)

    def server_credentials(self, *, demand_certificate: bool = False) -> grpc.ServerCredentials | None:
        """What the server listens with; None: plain text.

        Args:
            demand_certificate: who connects must show a certificate, whatever
                `require_client_certificate` says.

        Raises:
            SettingsError: a file cannot be read.
        """
        if self.cert_file is None:
            return None
        return grpc.dynamic_ssl_server_credentials(
            self._for_server(self._files.read()),
            self._renewed_for_server(),
            self.require_client_certificate or demand_certificate,
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

    def content(self) -> dict[str, bytes]:
        """What the files hold, by the variables that name them.

        Raises:
            SettingsError: a file cannot be used, and never could.
        """
        return self._files.read()

    def renewals(self) -> int:
        """How often the files have changed since they were first read."""
        return self._files.renewals()

    def _check(self, _: object) -> None:
        """Looks whether they fit: grpc ends the process when a key is cut off, or refuses each caller."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        wrong = "MUSTER_TLS_CA_FILE holds no certificates, as PEM"
        try:
            if self.ca_file is not None:
                context.load_verify_locations(self.ca_file)
            wrong = "MUSTER_TLS_CERT_FILE and MUSTER_TLS_KEY_FILE hold no certificate with its key, as PEM"
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file, password="")
        except (OSError, ValueError) as error:
            raise SettingsError([f"{wrong}: {error}"]) from None

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
