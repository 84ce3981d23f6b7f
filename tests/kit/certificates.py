"""Certificates of an authority, a server and others, made with openssl."""

import subprocess
from datetime import timedelta
from pathlib import Path

import grpc

AUTHORITY, OTHER_AUTHORITY = "authority", "other-authority"
SERVER, WORKER, STRANGER = "server", "worker", "stranger"
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_DAYS = 2
_HERE = "IP:127.0.0.1,DNS:localhost"


def uri(name: str) -> str:
    """The URI that `Certificates.issue_with_uris` writes into somebody's certificate."""
    return f"spiffe://muster.test/{name}"


class Certificates:
    """Certificates in a folder; a server's and a worker's of one authority, a stranger's of another.

    Args:
        folder: where they are written, as PEM.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for authority in (AUTHORITY, OTHER_AUTHORITY):
            self._make(authority)
        for name in (SERVER, WORKER):
            self.issue(name, AUTHORITY)
        self.issue(STRANGER, OTHER_AUTHORITY)

    @property
    def settings(self) -> dict[str, str]:
        """Settings of a process that speaks TLS only, with those that the authority knows."""
        return {
            "MUSTER_TLS_CERT_FILE": self.certificate(SERVER),
            "MUSTER_TLS_KEY_FILE": self.key(SERVER),
            "MUSTER_TLS_CA_FILE": self.certificate(AUTHORITY),
            "MUSTER_TLS_REQUIRE_CLIENT_CERTIFICATE": "true",
        }

    def certificate(self, name: str) -> str:
        """Path of somebody's certificate."""
        return str(self._folder / f"{name}.pem")

    def key(self, name: str) -> str:
        """Path of somebody's private key."""
        return str(self._folder / f"{name}.key")

    def renew_authority(self) -> None:
        """Puts another authority in the place of the one that is trusted."""
        self._make(AUTHORITY)

    def _make(self, authority: str) -> None:
        files = ("-keyout", self.key(authority), "-out", self.certificate(authority))
        self._openssl("req", "-x509", *_CURVE, *files, "-days", str(_DAYS), "-subj", f"/CN={authority}")

    def issue(
        self, name: str, authority: str, days: int = _DAYS, names: str = _HERE, age_days: int = 0
    ) -> None:
        """Makes a certificate for this machine, or a new one in its place, that lasts so many days.

        Args:
            name: its common name, and of its files.
            authority: signs it.
            days: that it lasts from now on.
            names: the alternative names, as openssl writes them; empty: none.
            age_days: so long ago it began to count.
        """
        request, extensions = self._folder / f"{name}.csr", self._folder / "extensions"
        extensions.write_text(f"subjectAltName={names}\n" if names else "")
        self._openssl(
            *("req", *_CURVE, "-keyout", self.key(name), "-out", str(request), "-subj", f"/CN={name}")
        )
        by = ("-CA", self.certificate(authority), "-CAkey", self.key(authority), "-CAcreateserial")
        files = ("-in", str(request), "-out", self.certificate(name), "-extfile", str(extensions))
        self._openssl("x509", "-req", *by, *files, "-days", str(days))
        if age_days:
            self._age(name, authority, age_days)

    def _age(self, name: str, authority: str, days: int) -> None:
        """Has a certificate begin earlier, which openssl lets nobody say before its version 3.4."""
        # Not at the top: the client's tests run where only the client is installed, too.
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        file, key = Path(self.certificate(name)), Path(self.key(authority))
        signing = serialization.load_pem_private_key(key.read_bytes(), None)
        assert isinstance(signing, ec.EllipticCurvePrivateKey)
        made = x509.load_pem_x509_certificate(file.read_bytes())
        aged = x509.CertificateBuilder(
            made.issuer,
            made.subject,
            made.public_key(),
            made.serial_number,
            made.not_valid_before_utc - timedelta(days),
            made.not_valid_after_utc,
            list(made.extensions),
        ).sign(signing, hashes.SHA256())
        file.write_bytes(aged.public_bytes(serialization.Encoding.PEM))

    def issue_with_uris(self, days: int = _DAYS) -> None:
        """Gives the server and the worker new certificates, each with a URI: see `uri`."""
        for name in (SERVER, WORKER):
            self.issue(name, AUTHORITY, days, f"{_HERE},URI:{uri(name)}")

    def credentials(self, name: str = "") -> grpc.ChannelCredentials:
        """What somebody connects with who trusts the authority; without a name: with no certificate."""
        root = Path(self.certificate(AUTHORITY)).read_bytes()
        if not name:
            return grpc.ssl_channel_credentials(root)
        pair = (Path(self.key(name)).read_bytes(), Path(self.certificate(name)).read_bytes())
        return grpc.ssl_channel_credentials(root, *pair)

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self._folder, check=True, capture_output=True)
