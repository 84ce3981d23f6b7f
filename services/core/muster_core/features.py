"""What can be enabled in a cluster: nothing of a feature is written before."""

from collections.abc import Iterable
from enum import StrEnum


class Feature(StrEnum):
    """Something that older servers would misread in the log, or on the wire between servers.

    A feature is enabled for a whole cluster, once and for good (`muster features enable`); a new cluster
    begins with all of them. From then on its records are written, always critical, and a server that does not
    know it gets no lease and no view.

    Attributes:
        about: what it brings, for operators.
    """

    TOPIC_INCARNATIONS = (
        "topic-incarnations",
        "a topic that was deleted and created again is another one: offsets of the old one are not its own",
    )
    UNSURE_BEATS = (
        "unsure-beats",
        "members keep their partitions through an outage of the log for as long as their sessions last",
    )
    CATALOG_SNAPSHOTS = (
        "catalog-snapshots",
        "the catalog's log is snapshotted and trimmed, so that it no longer grows with every change",
    )
    RESTORE_RECORDS = (
        "restore-records",
        "the log tells of restores from backups, so that audits with an anchor can accept them",
    )
    KEPT_PARTITIONS = (
        "kept-partitions",
        "members may keep partitions in a rebalance, whatever the next leader does with them",
    )
    PARTITION_ZONES = (
        "partition-zones",
        "topics carry the zones of their partitions, so that assignors can keep work near its data",
    )
    PARTITION_NAMES = (
        "partition-names",
        "partitions of a topic have names, and are added, weighed and removed one by one",
    )
    MEMBER_SECRETS = (
        "member-secrets",
        "who knows the id of a member cannot speak for it: members that join with a secret prove each call",
    )

    MEMBER_IDENTITY = (
        "member-identity",
        "a member belongs to the identity that joined: no other beats, commits or leaves for it",
    )

    INCREMENTAL_GROUPS = (
        "incremental-groups",
        "the coordinator assigns, and a partition that does not move is not touched when members come and go",
    )

    GROUP_SETTINGS = (
        "group-settings",
        "groups have settings of their own: assignor, times, hold, and when they become incremental ones",
    )

    about: str

    def __new__(cls, value: str, about: str) -> "Feature":
        """A member: the name that is stored, and what it is for."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.about = about
        return member


ALL_FEATURES = frozenset(Feature)
"""What this version serves, and a new cluster begins with."""

NO_FEATURES: frozenset[Feature] = frozenset()
"""A cluster as the version before features made it."""

FEATURE_NAMES = tuple(sorted(ALL_FEATURES))
"""Their names, in order, as messages carry them."""


def lacking(enabled: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """Names of enabled features that are not among the known ones, in order."""
    return tuple(sorted(set(enabled) - set(known)))


def known_of(names: Iterable[str]) -> frozenset[Feature]:
    """The features of these names that this version knows; see `lacking` for the others."""
    return ALL_FEATURES.intersection(names)
