"""A process says in time that its certificates end."""

import shutil
import time
from pathlib import Path

import pytest
from kit.certificates import AUTHORITY, SERVER, Certificates
from muster_runtime.rpc.trust.expiry import (
    AUTHORITIES,
    CERTIFICATE_LEFT,
    CERTIFICATE_LIFE,
    DAY_S,
    OWN,
    CertificateWatch,
    Validity,
    validities,
)
from muster_runtime.rpc.trust.tls import TlsSettings
from structlog.testing import capture_logs

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is not on the path; install it"
)


@pytest.mark.parametrize(
    ("life_days", "left_days", "due", "overdue"),
    [
        (365, 14.1, False, False),
        (365, 13.9, True, False),
        (365, 1.9, True, True),
        (365, -1, True, True),
        (90, 14.1, False, False),
        (10, 2.1, False, False),
        (10, 1.9, True, False),
        (1 / 24, 1 / 100, False, False),
        (1 / 24, 1 / 130, True, False),
    ],
)
def test_who_renews_short_ones_by_a_program_is_not_warned(
    life_days: float, left_days: float, due: bool, overdue: bool
) -> None:
    validity = Validity(0, life_days * DAY_S)
    now_s = (life_days - left_days) * DAY_S
    assert (validity.is_due(now_s), validity.is_overdue(now_s)) == (due, overdue)


def tls_of(certificates: Certificates, authorities: Path | None = None) -> TlsSettings:
    own = Path(certificates.certificate(SERVER)), Path(certificates.key(SERVER))
    return TlsSettings(cert_file=own[0], key_file=own[1], ca_file=authorities)


@needs_openssl
async def test_it_is_said_once_a_day_until_the_files_are_renewed(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certificates.issue(SERVER, AUTHORITY, days=3, age_days=27)
    now_s = time.time()
    watch = CertificateWatch(tls_of(certificates), lambda: now_s)

    def said() -> list[tuple[str, str, float]]:
        with capture_logs() as lines:
            watch.look()
        return [(one["event"], one["of"], round(one["left_days"])) for one in lines if "of" in one]

    assert said() == [("certificate_ends", OWN, 3)]
    assert said() == []
    now_s += DAY_S + 1
    assert said() == [("certificate_ends", OWN, 2)]
    left, life = await watch.read()
    assert (left.metric, left.labels) == (CERTIFICATE_LEFT, (OWN,))
    assert left.value == pytest.approx(2 * DAY_S, abs=60)
    assert (life.metric, life.labels) == (CERTIFICATE_LIFE, (OWN,))
    assert life.value == pytest.approx(30 * DAY_S)

    certificates.issue(SERVER, AUTHORITY, days=2, age_days=28)
    assert said() == [("certificate_ends", OWN, 1)], "it was renewed, and ends"
    certificates.issue(SERVER, AUTHORITY, days=30)
    assert said() == []


@needs_openssl
def test_of_a_chain_the_first_end_counts_and_of_authorities_the_last(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certificates.issue(SERVER, AUTHORITY, days=9)
    own = Path(certificates.certificate(SERVER))
    authority = Path(certificates.certificate(AUTHORITY)).read_bytes()
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(authority + own.read_bytes())
    own.write_bytes(own.read_bytes() + authority)
    now_s = time.time()
    found = validities(tls_of(certificates, bundle))
    assert {name: round(one.left_s(now_s) / DAY_S) for name, one in found.items()} == {OWN: 2, AUTHORITIES: 9}


def test_without_certificates_there_is_nothing_to_say() -> None:
    watch = CertificateWatch(TlsSettings())
    with capture_logs() as lines:
        watch.look()
    assert lines == []
