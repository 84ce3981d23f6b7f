"""What a process shows others, and asks of them: certificates, tokens, and who may do what."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, cast

import grpc

from muster_runtime.rpc.access.access import Access, AccessSettings
from muster_runtime.rpc.identity.callers import Callers
from muster_runtime.rpc.identity.settings import IdentitySettings
from muster_runtime.rpc.trust.inside import InternalCalls, InternalSettings, PresentingChannel
from muster_runtime.rpc.trust.tls import TlsSettings
from muster_runtime.rpc.wire import GRPC, Options, Wire
from muster_runtime.settings import Settings, SettingsError, load

_Channel = TypeVar("_Channel", grpc.aio.Channel, grpc.Channel)


@dataclass(frozen=True)
class Trust:
    """The settings of certificates and tokens, and the channels and servers that follow from them.

    Attributes:
        tls: certificates; plain text without any.
        internal: tokens for internal calls.
        identity: what callers of public services prove.
        access: what they may do.
    """

    tls: TlsSettings = field(default_factory=TlsSettings)
    internal: InternalSettings = field(default_factory=InternalSettings)
    identity: IdentitySettings = field(default_factory=IdentitySettings)
    access: AccessSettings = field(default_factory=AccessSettings)

    SETTINGS: ClassVar[tuple[type[Settings], ...]] = (
        TlsSettings,
        InternalSettings,
        IdentitySettings,
        AccessSettings,
    )

    @classmethod
    def load(cls) -> "Trust":
        """What the environment says.

        Raises:
            SettingsError: a variable is wrong, or the file of tokens or of rights cannot be used.
        """
        trust = cls(load(TlsSettings), load(InternalSettings), load(IdentitySettings), load(AccessSettings))
        trust.internal.tokens()
        trust.rights()
        trust.callers()
        if trust.internal.peers and (trust.tls.cert_file is None or trust.tls.ca_file is None):
            names = ", ".join(TlsSettings.variable(name) for name in ("ca_file", "cert_file", "key_file"))
            peers = InternalSettings.variable("peers")
            raise SettingsError([f"{peers} names peers by their certificates: it needs {names}"])
        return trust

    def channel(self, target: str, options: Options, wire: Wire = GRPC) -> grpc.aio.Channel:
        """A channel to another process.

        Raises:
            SettingsError: a file cannot be used, and never could.
        """
        return self._presenting(wire.channel(target, self.tls.channel_credentials(), options))

    def blocking_channel(self, target: str, options: Options) -> grpc.Channel:
        """A channel for a thread without an event loop.

        Raises:
            SettingsError: a file cannot be used, and never could.
        """
        credentials = self.tls.channel_credentials()
        if credentials is None:
            return self._presenting(grpc.insecure_channel(target, options))
        return self._presenting(grpc.secure_channel(target, credentials, options))

    def _presenting(self, channel: _Channel) -> _Channel:
        if not self.internal.tokens():
            return channel
        presenting: Any = PresentingChannel(channel, self.internal)
        return cast(_Channel, presenting)

    def server_credentials(self, *, internal: bool = False) -> grpc.ServerCredentials | None:
        """What a server listens with; None: plain text.

        Args:
            internal: the port is for the cluster's own processes: where these are known by their
                certificates, who connects must show one.

        Raises:
            SettingsError: a file cannot be read.
        """
        return self.tls.server_credentials(demand_certificate=internal and bool(self.internal.peers))

    def internal_calls(self) -> InternalCalls:
        """What checks the internal calls of a server."""
        return InternalCalls(self.internal)

    def callers(self) -> Callers | None:
        """What finds out who calls the public services of a server; None: nobody can prove anything.

        Raises:
            SettingsError: callers have to prove who they are and nobody could, or the file of keys cannot
                be used.
        """
        certificates = self.tls.require_client_certificate
        if certificates or self.identity.reads_tokens:
            return Callers(self.identity, certificates=certificates)
        if self.identity.required:
            needs = self.tls.variable("require_client_certificate"), self.identity.variable("token_issuer")
            raise SettingsError([f"{self.identity.variable('required')} needs {' or '.join(needs)}"])
        return None

    def rights(self) -> Access:
        """What says what callers of the public services of a server may do.

        Raises:
            SettingsError: the file cannot be used, and never could.
        """
        return Access(self.access)

    def renewals(self) -> int:
        """How often the certificates have changed since they were first read."""
        return self.tls.renewals()
