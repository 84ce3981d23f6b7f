"""Judges the clients of a cluster's members: whether their versions go with those of the servers. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence

from muster_protos.muster.internal.v1 import coordinator_pb2 as peer_pb2

from muster_server.doctor.findings import CheckResult, Finding
from muster_server.doctor.shown import shown

PYTHON = "muster-python"
"""The library whose versions are those of the servers."""

_VERSION = re.compile(r"(\d{1,6})\.(\d{1,6})\.\d{1,6}([.+-].*)?", re.ASCII | re.DOTALL)
_WHAT = "clients"


def judge_clients(
    answers: Mapping[str, peer_pb2.DescribeFaultsResponse], server_versions: Sequence[str]
) -> Iterator[Finding]:
    """Judges members by the version of their library; neighbouring minor versions work together.

    Args:
        answers: of coordinators, by name.
        server_versions: of all processes; what is no version is passed over.
    """
    servers = sorted(found for version in server_versions if (found := _parsed(version)) is not None)
    if not answers or not servers:
        return
    members: dict[str, int] = {}
    examples: dict[str, peer_pb2.DescribeFaultsResponse.Client] = {}
    for answer in answers.values():
        for client in answer.clients:
            members[client.client_version] = members.get(client.client_version, 0) + client.members
            examples.setdefault(client.client_version, client)
    fine: list[str] = []
    for version, count in sorted(members.items()):
        library, _, number = version.partition("/")
        parsed = _parsed(number) if library == PYTHON else None
        counted = f"{count:,} {'member' if count == 1 else 'members'}"
        one = examples[version]
        example = f"such as {shown(one.member_id)} of group {shown(one.group_id)}"
        if not version:
            yield Finding(
                _WHAT,
                counted,
                CheckResult.SKIPPED,
                f"they do not say which version they are, {example}",
                "clients of 0.1 do not, nor do some that are not of Muster: upgrade those of 0.1",
            )
        elif parsed is not None and _is_before(parsed, servers[-1]):
            yield Finding(
                _WHAT,
                shown(version),
                CheckResult.WARNING,
                f"{counted} more than one minor version behind a server, {example}",
                "upgrade these workers: docs/upgrade.md",
            )
        elif parsed is not None and _is_before(servers[0], parsed):
            yield Finding(
                _WHAT,
                shown(version),
                CheckResult.WARNING,
                f"{counted} more than one minor version ahead of a server, {example}",
                "upgrade the servers before the workers: docs/upgrade.md",
            )
        else:
            fine.append(f"{counted} with {shown(version)}")
    if fine:
        yield Finding(_WHAT, "all groups", CheckResult.OK, ", ".join(fine))


def _is_before(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether a version is more than one minor version behind another."""
    return one[0] < other[0] or (one[0] == other[0] and one[1] + 1 < other[1])


def _parsed(version: str) -> tuple[int, int] | None:
    found = _VERSION.fullmatch(version)
    return None if found is None else (int(found[1]), int(found[2]))
