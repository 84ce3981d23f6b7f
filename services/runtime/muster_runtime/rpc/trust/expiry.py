"""When the certificates of a process end, and who is told in time."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

import structlog

from muster_runtime.rpc.trust.tls import TlsSettings
from muster_runtime.settings import SettingsError
from muster_runtime.telemetry.metric import Kind, Metric, Sample
from muster_runtime.telemetry.telemetry import Source

if TYPE_CHECKING:
    from cryptography import x509

log = structlog.get_logger()

DAY_S = 86_400
DUE_PART, DUE_MAX_S = 5, 14 * DAY_S
"""A certificate is to be renewed when no more than this part of its time is left, and no more than that long.

Who renews certificates by a program does so earlier: after a half or two thirds of their time.
"""
OVERDUE_PART, OVERDUE_MAX_S = 35, 2 * DAY_S
"""The same for one that is about to end: whoever should have renewed it has not."""

_LOOK_S = 60.0
_AGAIN_S = DAY_S
"""How often it is said again that a certificate ends."""

OWN, AUTHORITIES = "own", "authorities"
_OF = {"of": (OWN, AUTHORITIES)}
CERTIFICATE_LEFT = Metric(
    "muster_certificate_left",
    Kind.GAUGE,
    "How long the process's certificate and the authorities that it trusts still count; below 0: ended.",
    "seconds",
    labels=_OF,
    advice="Renew the files; processes read them again without a restart (docs/security.md).",
)
CERTIFICATE_LIFE = Metric(
    "muster_certificate_life",
    Kind.GAUGE,
    "How long they count altogether.",
    "seconds",
    labels=_OF,
)


@dataclass(frozen=True, slots=True)
class Validity:
    """From when until when a certificate counts, Unix time."""

    begins_s: float
    ends_s: float

    def left_s(self, now_s: float) -> float:
        """How long it still counts; below 0: it has ended."""
        return self.ends_s - now_s

    @property
    def life_s(self) -> float:
        """How long it counts altogether."""
        return self.ends_s - self.begins_s

    @classmethod
    def of(cls, certificate: "x509.Certificate") -> Self:
        """What a certificate says."""
        begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        return cls(begins.timestamp(), ends.timestamp())

    def is_due(self, now_s: float) -> bool:
        """Whether it is to be renewed."""
        return self.left_s(now_s) <= min(self.life_s / DUE_PART, DUE_MAX_S)

    def is_overdue(self, now_s: float) -> bool:
        """Whether it is about to end, or has ended."""
        return self.left_s(now_s) <= min(self.life_s / OVERDUE_PART, OVERDUE_MAX_S)


def validities(tls: TlsSettings) -> Mapping[str, Validity]:
    """What counts of the files now: of a chain what ends first, of authorities what ends last.

    Returns:
        By what they are, `OWN` and `AUTHORITIES`; what is not set is missing.
    """
    found: dict[str, Validity] = {}
    content = tls.content()
    if chain := content.get(tls.variable("cert_file")):
        found[OWN] = min(_validities_in(chain), key=_end_of)
    if authorities := content.get(tls.variable("ca_file")):
        found[AUTHORITIES] = max(_validities_in(authorities), key=_end_of)
    return found


def _validities_in(pem: bytes) -> list[Validity]:
    from cryptography import x509  # only who has certificates loads it

    return [Validity.of(one) for one in x509.load_pem_x509_certificates(pem)]


def _end_of(one: Validity) -> float:
    return one.ends_s


class CertificateWatch(Source):
    """Tells the log and whoever reads the metrics in time that certificates end.

    Args:
        tls: where they are.
        now_s: the wall clock, Unix time.
    """

    metrics = (CERTIFICATE_LEFT, CERTIFICATE_LIFE)

    def __init__(self, tls: TlsSettings, now_s: Callable[[], float] = time.time) -> None:
        self._tls = tls
        self._now_s = now_s
        self._renewals = -1
        self._validities: Mapping[str, Validity] = {}
        self._told_s: dict[str, float] = {}

    async def run(self) -> None:
        """Looks at them each minute, until it is cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_S)

    def look(self) -> None:
        """Warns of each that is to be renewed: once a day, and when files were renewed and it still is."""
        now_s = self._now_s()
        self._read()
        for name, validity in self._validities.items():
            if not validity.is_due(now_s):
                self._told_s.pop(name, None)
            elif now_s - self._told_s.get(name, -_AGAIN_S) >= _AGAIN_S:
                self._told_s[name] = now_s
                log.warning(
                    "certificate_ends",
                    of=name,
                    file=str(self._tls.cert_file if name == OWN else self._tls.ca_file),
                    ends=datetime.fromtimestamp(validity.ends_s, UTC).isoformat(),
                    left_days=round(validity.left_s(now_s) / DAY_S, 2),
                    meaning="renew the files; they are read again without a restart",
                )

    def _read(self) -> None:
        try:
            renewals = self._tls.renewals()
            if renewals != self._renewals:
                self._renewals = renewals  # also where they cannot be read, which is said once
                self._validities = validities(self._tls)
                self._told_s.clear()
        except (SettingsError, ValueError) as error:
            log.warning("certificate_end_unknown", problem=str(error))

    async def read(self) -> Sequence[Sample]:
        """See `Source`."""
        now_s = self._now_s()
        samples: list[Sample] = []
        for name, one in self._validities.items():
            samples.append(Sample(CERTIFICATE_LEFT, one.left_s(now_s), (name,)))
            samples.append(Sample(CERTIFICATE_LIFE, one.life_s, (name,)))
        return samples
