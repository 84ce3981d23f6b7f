"""What `muster doctor` says of the versions of members."""

from muster_protos.muster.internal.v1 import coordinator_pb2 as peer_pb2
from muster_server.doctor.clients import judge_clients
from muster_server.doctor.findings import CheckResult, Finding


def judged(clients: dict[str, int], *servers: str) -> list[Finding]:
    answer = peer_pb2.DescribeFaultsResponse()
    for version, members in clients.items():
        answer.clients.add(client_version=version, members=members, group_id="g", member_id="worker-1")
    return list(judge_clients({"c-1": answer, "c-2": answer}, servers))


def of(findings: list[Finding], result: CheckResult) -> list[Finding]:
    return [finding for finding in findings if finding.result is result]


def test_neighbouring_versions_go_together() -> None:
    (found,) = judged({"muster-python/0.3.1": 2, "muster-python/0.5.0.dev1": 1}, "0.4.0")
    assert found.result is CheckResult.OK
    assert found.detail == "4 members with muster-python/0.3.1, 2 members with muster-python/0.5.0.dev1"


def test_members_that_are_too_old_are_warned_of_with_one_of_them() -> None:
    (found,) = of(judged({"muster-python/0.2.0": 1}, "0.3.0", "0.4.0"), CheckResult.WARNING)
    assert found.subject == "muster-python/0.2.0"
    assert "2 members more than one minor version behind a server" in found.detail
    assert "such as worker-1 of group g" in found.detail


def test_members_that_are_too_new_are_warned_of() -> None:
    (found,) = of(judged({"muster-python/0.6.0": 1}, "0.4.2", "0.5.0"), CheckResult.WARNING)
    assert "ahead of a server" in found.detail
    assert "upgrade the servers before the workers" in found.fix
    assert of(judged({"muster-python/1.0.0": 1}, "0.4.2"), CheckResult.WARNING)


def test_those_that_say_nothing_or_are_of_another_library_are_no_failure() -> None:
    silent, fine = judged({"": 3, "worker-go/9.9.9": 1, "muster-python/unknown": 1}, "0.4.0")
    assert (silent.result, silent.subject) == (CheckResult.SKIPPED, "6 members")
    assert fine.detail == "2 members with muster-python/unknown, 2 members with worker-go/9.9.9"


def test_what_a_member_says_does_nothing_to_a_terminal() -> None:
    (found,) = judged({"\x1b[31mred": 1}, "0.4.0")
    assert found.detail == "2 members with \\x1b[31mred"


def test_without_servers_or_answers_nothing_is_said() -> None:
    assert judged({"muster-python/0.2.0": 1}) == []
    assert list(judge_clients({}, ["0.4.0"])) == []
