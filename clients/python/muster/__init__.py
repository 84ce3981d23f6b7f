"""Muster shares work among any fleet of workers: one owner per partition, through crashes and deploys.

    import muster

    async def work(p: muster.Partition):
        position = await p.committed() or 0
        ...
        await p.commit(position)

    muster.run(work, group="crawlers", topic="sites", partitions=12)

`run` and `arun` run a function on every partition that this process owns. `lead` and `alead` make one process
the leader among all that ask. `Member` is the layer below, with
callbacks; `Cluster` is the connection, with topics and groups; `muster.assignors` has the assignors, and
`muster.sinks` what makes a sink refuse a worker that is not the owner any more.

Modules and packages that begin with `_` are private. Read `_member` first, then `_work`, `_cluster`,
`_session` and `_blocked`; the modules beside these packages are small, and each is used by more than one
of them.
"""

import importlib
import os
import typing

# What gRPC does at a fork lets children crash that never use it. It reads this when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

if typing.TYPE_CHECKING:
    from muster import assignors
    from muster._cluster.cluster import Cluster
    from muster._cluster.owners import owner_of
    from muster._config import MemberConfig, MemberSettings
    from muster._errors import (
        AssignorFailed,
        CallbackFailed,
        ClusterUnavailable,
        CommitFailed,
        CommitRejected,
        FencedInstance,
        GroupError,
        LeadershipLost,
        MemberClosed,
        MusterError,
        RequestRefused,
        SettingsError,
        TopicError,
        WorkFailed,
        WorkIdle,
    )
    from muster._lead.candidacy import LeadSettings
    from muster._lead.entry import alead, lead
    from muster._lead.leadership import Leadership
    from muster._lead.term import BlockingTerm, Term
    from muster._member.callbacks import PartitionsCallback
    from muster._member.member import Member
    from muster._parking import Parked
    from muster._run import arun, run
    from muster._session.tls import TlsFiles
    from muster._session.token import TokenFile
    from muster._standing.standing import MemberState
    from muster._values import Committed, Owner, Progress, Topic, TopicPartition
    from muster._work.partition import BlockingPartition, Partition

__all__ = [
    "AssignorFailed",
    "BlockingPartition",
    "BlockingTerm",
    "CallbackFailed",
    "Cluster",
    "ClusterUnavailable",
    "CommitFailed",
    "CommitRejected",
    "Committed",
    "FencedInstance",
    "GroupError",
    "LeadSettings",
    "Leadership",
    "LeadershipLost",
    "Member",
    "MemberClosed",
    "MemberConfig",
    "MemberSettings",
    "MemberState",
    "MusterError",
    "Owner",
    "Parked",
    "Partition",
    "PartitionsCallback",
    "Progress",
    "RequestRefused",
    "SettingsError",
    "Term",
    "TlsFiles",
    "TokenFile",
    "Topic",
    "TopicError",
    "TopicPartition",
    "WorkFailed",
    "WorkIdle",
    "alead",
    "arun",
    "assignors",
    "lead",
    "owner_of",
    "run",
]

_MODULES = {
    "_member.callbacks": ("PartitionsCallback",),
    "_cluster.cluster": ("Cluster",),
    "_config": ("MemberConfig", "MemberSettings"),
    "_errors": (
        "AssignorFailed",
        "CallbackFailed",
        "ClusterUnavailable",
        "CommitFailed",
        "CommitRejected",
        "FencedInstance",
        "GroupError",
        "LeadershipLost",
        "MemberClosed",
        "MusterError",
        "RequestRefused",
        "SettingsError",
        "TopicError",
        "WorkFailed",
        "WorkIdle",
    ),
    "_lead.candidacy": ("LeadSettings",),
    "_lead.entry": ("alead", "lead"),
    "_lead.leadership": ("Leadership",),
    "_lead.term": ("BlockingTerm", "Term"),
    "_member.member": ("Member",),
    "_parking": ("Parked",),
    "_run": ("arun", "run"),
    "_session.tls": ("TlsFiles",),
    "_session.token": ("TokenFile",),
    "_standing.standing": ("MemberState",),
    "_cluster.owners": ("owner_of",),
    "_values": ("Committed", "Owner", "Progress", "Topic", "TopicPartition"),
    "_work.partition": ("BlockingPartition", "Partition"),
}
"""Where each name comes from. A module is imported when its first name is used: importing all of them takes a
third of a second, in which an interrupted command would end with a traceback."""

if not typing.TYPE_CHECKING:  # or every name would be known to type checkers

    def __getattr__(name: str) -> object:
        if name == "assignors":
            return importlib.import_module("muster.assignors")
        for module, names in _MODULES.items():
            if name in names:
                value = globals()[name] = getattr(importlib.import_module(f"muster.{module}"), name)
                return value
        raise AttributeError(f"module 'muster' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
