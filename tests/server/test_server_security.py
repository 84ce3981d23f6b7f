"""`muster doctor --security` on real clusters: one that is open, and one with all of the hardening list."""

import shutil
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from kit.certificates import AUTHORITY, OTHER_AUTHORITY, SERVER, Certificates, uri
from kit.tokens import token_settings
from muster_runtime.rpc.trust.expiry import Validity
from muster_server.dev.cluster import DevCluster
from muster_server.dev.ports import LOOPBACK
from muster_server.doctor.findings import CheckResult
from muster_server.doctor.security.ports import Port, Shown, judge_ports
from muster_server.doctor.security.users import Login, judge_logins
from muster_server.roles import COORDINATOR, DISCOVERY, METADATA
from server.test_server_doctor import Diagnosis, doctor

NEEDS_OPENSSL = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is not on the path; install it"
)
OK, WARNING, FAILED, SKIPPED = CheckResult.OK, CheckResult.WARNING, CheckResult.FAILED, CheckResult.SKIPPED
DAY_S = 86_400.0


async def examine(folder: Path, **settings: str) -> Diagnosis:
    code, out, problem = await doctor("--security", "--data", str(folder), "-o", "json", **settings)
    assert out, problem
    return Diagnosis(code, out)


def results(diagnosis: Diagnosis, check: str) -> dict[str, str]:
    """What came of a check, by its subject."""
    return {one["subject"]: one["result"] for one in diagnosis.told["findings"] if one["check"] == check}


@pytest.mark.cluster
async def test_an_open_cluster_is_told_each_door_and_how_to_close_it(tmp_path: Path) -> None:
    async with DevCluster(tmp_path, coordinators=1) as cluster:
        found = await examine(tmp_path)
        ports = {
            f"discovery {cluster.servers}": WARNING,
            f"metadata {cluster.metadata[0].address}": FAILED,
            f"coordinator {cluster.coordinators[0].address}": OK,
            f"coordinator {LOOPBACK}:{cluster.internal_ports['coordinator-1']}": FAILED,
        }
        assert found.code == 1
        assert results(found, "internal calls") == ports
        redis = f"redis {cluster.redis_url.removeprefix('redis://')}"
        assert results(found, "tls") == {**dict.fromkeys(ports, FAILED), redis: WARNING}
        assert set(results(found, "identity").values()) == {WARNING}
        assert results(found, "features") == {"all": OK}
        assert set(results(found, "rights").values()) == {WARNING}
        assert [one["result"] for one in found.told["findings"] if one["check"] == "log user"] == [
            FAILED,
            FAILED,
        ]
        assert all(one["fix"] for one in found.told["findings"] if one["result"] in (WARNING, FAILED))


@pytest.mark.cluster
@NEEDS_OPENSSL
async def test_a_cluster_with_certificates_tokens_and_names_passes(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    certificates.issue_with_uris(days=60)
    settings = {
        **certificates.settings,
        **token_settings(tmp_path / "token"),
        "MUSTER_INTERNAL_PEERS": uri(SERVER),
    }
    folder = tmp_path / "cluster"
    async with DevCluster(folder, coordinators=1, settings=settings):
        found = await examine(folder, **settings)
        for check in ("internal calls", "certificates", "identity"):
            assert set(results(found, check).values()) == {OK}, found.told
        tls = results(found, "tls")
        assert {where for where, result in tls.items() if result != OK} == {
            where for where in tls if where.startswith("redis ")
        }
        certificates.issue(SERVER, AUTHORITY, days=5, age_days=60)
        found = await examine(folder, **settings)
        assert set(results(found, "certificates").values()) == {WARNING}


@pytest.mark.cluster
@NEEDS_OPENSSL
async def test_doors_that_any_certificate_opens_are_told(tmp_path: Path) -> None:
    """A stranger without one is refused by the handshake, and a worker by nobody."""
    certificates = Certificates(tmp_path / "certificates")
    folder = tmp_path / "cluster"
    async with DevCluster(folder, coordinators=1, settings=certificates.settings) as cluster:
        found = await examine(folder, **certificates.settings)
        assert results(found, "internal calls") == {
            f"discovery {cluster.servers}": WARNING,
            f"metadata {cluster.metadata[0].address}": FAILED,
            f"coordinator {cluster.coordinators[0].address}": OK,
            f"coordinator {LOOPBACK}:{cluster.internal_ports['coordinator-1']}": FAILED,
        }
        assert found.code == 1


@pytest.mark.cluster
@NEEDS_OPENSSL
async def test_ports_of_another_authority_are_not_taken_for_closed(tmp_path: Path) -> None:
    """What refuses the connection is this command, which does not trust them."""
    certificates = Certificates(tmp_path / "certificates")
    folder = tmp_path / "cluster"
    async with DevCluster(folder, coordinators=1, settings=certificates.settings) as cluster:
        strange = {**certificates.settings, "MUSTER_TLS_CA_FILE": certificates.certificate(OTHER_AUTHORITY)}
        found = await examine(folder, **strange)
        ports = [f"discovery {cluster.servers}", f"metadata {cluster.metadata[0].address}"]
        assert results(found, "identity") == dict.fromkeys(ports, SKIPPED)
        assert results(found, "internal calls") == {}


@pytest.mark.cluster
async def test_rights_that_nobody_tells_are_not_taken_for_there(tmp_path: Path) -> None:
    """Coordinators answer internal calls at a port that metadata alone knows, and none was named."""
    rules = tmp_path / "access.toml"
    rules.write_text('[[rule]]\nwho = ["*"]\nverbs = ["admin"]\ncluster = true\n')
    async with DevCluster(
        tmp_path / "c", coordinators=1, settings={"MUSTER_ACCESS_FILE": str(rules)}
    ) as cluster:
        for which in ((), ("--security",)):
            _, out, problem = await doctor(*which, "--servers", cluster.servers, "-o", "json")
            assert out, problem
            found = Diagnosis(0, out)
            assert results(found, "rights") == {
                cluster.servers: OK,
                f"coordinator-1 ({cluster.coordinators[0].address})": SKIPPED,
            }


PUBLIC = Port(COORDINATOR, "c:1", public=True, internal=False)
INTERNAL = Port(METADATA, "m:2", public=False, internal=True)


@pytest.mark.parametrize(
    ("life_days", "days", "result"),
    [
        *((365, 15.0, OK), (365, 14.1, OK), (365, 13.9, WARNING), (365, 2.1, WARNING), (365, 1.9, FAILED)),
        *((365, -1.0, FAILED), (1, 0.21, OK), (1, 0.19, WARNING), (1, 0.01, FAILED)),
    ],
)
def test_certificates_are_told_of_before_they_end(life_days: float, days: float, result: CheckResult) -> None:
    ends_s = 1_000 + days * DAY_S
    validity = Validity(ends_s - life_days * DAY_S, ends_s)
    shown = Shown(INTERNAL, reached=True, tls=True, validity=validity)
    (finding,) = [one for one in judge_ports([shown], 1_000) if one.check == "certificates"]
    assert finding.result is result
    assert ("has ended" in finding.detail) is (days < 0)


@pytest.mark.parametrize(
    ("port", "code", "result"),
    [
        (PUBLIC, grpc.StatusCode.OK, FAILED),
        (PUBLIC, grpc.StatusCode.UNAUTHENTICATED, WARNING),
        (PUBLIC, grpc.StatusCode.PERMISSION_DENIED, WARNING),
        (PUBLIC, grpc.StatusCode.UNIMPLEMENTED, OK),
        (INTERNAL, grpc.StatusCode.OK, FAILED),
        (INTERNAL, grpc.StatusCode.UNAUTHENTICATED, OK),
        (INTERNAL, grpc.StatusCode.DEADLINE_EXCEEDED, SKIPPED),
        (INTERNAL, grpc.StatusCode.RESOURCE_EXHAUSTED, SKIPPED),
        (INTERNAL, None, OK),
        (replace(INTERNAL, lets_in=True), None, FAILED),
        (replace(PUBLIC, lets_in=True), None, FAILED),
        (Port(DISCOVERY, "d:3", public=True, internal=False, lets_in=True), None, WARNING),
    ],
)
def test_internal_calls_are_for_no_stranger_and_not_where_clients_connect(
    port: Port, code: grpc.StatusCode | None, result: CheckResult
) -> None:
    shown = Shown(port, reached=True, tls=code is None, internal_call=code)
    (finding,) = [one for one in judge_ports([shown], 0) if one.check == "internal calls"]
    assert finding.result is result


@pytest.mark.parametrize(
    ("code", "result"),
    [
        (grpc.StatusCode.OK, WARNING),
        (grpc.StatusCode.UNAUTHENTICATED, OK),
        (grpc.StatusCode.PERMISSION_DENIED, OK),
        (None, OK),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, SKIPPED),
        (grpc.StatusCode.DEADLINE_EXCEEDED, SKIPPED),
        (grpc.StatusCode.UNIMPLEMENTED, SKIPPED),
        (grpc.StatusCode.INTERNAL, SKIPPED),
    ],
)
def test_a_port_that_is_busy_or_fails_is_not_taken_for_one_that_asks_who_calls(
    code: grpc.StatusCode | None, result: CheckResult
) -> None:
    shown = Shown(
        PUBLIC, True, tls=code is None, internal_call=grpc.StatusCode.UNIMPLEMENTED, public_call=code
    )
    (finding,) = [one for one in judge_ports([shown], 0) if one.check == "identity"]
    assert finding.result is result


@pytest.mark.parametrize("check", ["internal calls", "identity"])
def test_a_connection_that_ends_without_tls_says_nothing(check: str) -> None:
    shown = Shown(PUBLIC, reached=True)
    assert [one.result for one in judge_ports([shown], 0) if one.check == check] == [SKIPPED]


def test_what_is_not_reached_or_cannot_be_checked_is_not_taken_for_closed() -> None:
    away, unchecked = Shown(PUBLIC, reached=False), Shown(PUBLIC, reached=True, tls=True, called=False)
    assert [one.result for one in judge_ports([away], 0)] == [SKIPPED]
    assert [one.result for one in judge_ports([unchecked], 0) if one.check == "identity"] == [SKIPPED]
    assert not [one for one in judge_ports([unchecked], 0) if one.check == "internal calls"]


@pytest.mark.cluster
@NEEDS_OPENSSL
async def test_who_may_not_describe_the_cluster_is_told_which_right_that_takes(tmp_path: Path) -> None:
    """Its certificate is as good as any, so to say that it should show one would lead nowhere."""
    certificates = Certificates(tmp_path / "certificates")
    certificates.issue_with_uris()
    rules = tmp_path / "access.toml"
    rules.write_text('[[rule]]\nwho = ["nobody"]\nverbs = ["describe"]\ncluster = true\n')
    settings = {**certificates.settings, "MUSTER_ACCESS_FILE": str(rules)}
    async with DevCluster(tmp_path / "cluster", coordinators=1, settings=settings):
        told = await examine(tmp_path / "cluster", **certificates.settings)
    (cluster,) = [one for one in told.told["findings"] if one["check"] == "cluster"]
    assert cluster["result"] == SKIPPED
    assert "`describe` the cluster" in cluster["fix"]


@pytest.mark.parametrize(
    ("commands", "keys", "result"),
    [
        (b"-@all +get", b"~muster:*", OK),
        (b"+@all", b"~muster:*", FAILED),
        (b"-@all +@dangerous", b"~muster:*", FAILED),
        (b"-@all +get", b"~*", FAILED),
        (b"-@all +get", b"~muster:* ~other:*", FAILED),
        (None, None, SKIPPED),
    ],
)
def test_a_user_of_the_log_may_do_no_more_than_it_must(
    commands: bytes | None, keys: bytes | None, result: CheckResult
) -> None:
    login = Login("r:1", tls=True, user="muster", commands=commands, keys=keys)
    (finding,) = [one for one in judge_logins([login]) if one.check == "log user"]
    assert finding.result is result


def test_metadata_that_logs_in_as_default_and_a_node_without_password_are_told() -> None:
    findings = list(judge_logins([Login("r:1", tls=False, user="default", open=True)]))
    assert [one.result for one in findings] == [WARNING, FAILED, FAILED]
