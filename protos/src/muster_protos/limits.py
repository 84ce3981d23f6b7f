"""Sizes and names that both sides of the wire agree on.

A server refuses what breaks them; a client says so before the call. Limits of servers alone are not here.
"""

import re
from typing import Final

ID_MAX_BYTES: Final = 255
"""Ids and names in UTF-8: of groups, members, clients, protocols, processes."""

NAME_MAX_CHARACTERS: Final = 249
"""Names of topics and static ids, as in Kafka."""

REASON_MAX_CHARACTERS: Final = 255
"""What a member says about its join or its leaving."""

PROTOCOLS_MAX: Final = 16
"""Protocols of a join."""

USER_DATA_MAX_BYTES: Final = 65_536
"""What a member tells an assignor of its user's own."""

TOPIC_PARTITIONS_MAX: Final = 100_000
"""Partitions of a topic."""

MEMBER_SECRET_MIN_BYTES: Final = 16
"""Secret of a member: drawn at random, so this is too many for anybody to try."""

MEMBER_SECRET_MAX_BYTES: Final = 64
"""Secret of a member."""

PARTITION_WEIGHT_MAX: Final = 1_000_000
"""Weight of a partition, from 1."""

MEMBER_WEIGHT_MAX: Final = 100
"""Weight of a member, from 1."""

ROLLOUT_HOLD_MAX_MS: Final = 3_600_000
"""For how long a member that joins may ask that moves are held back."""

REQUEST_MAX_BYTES: Final = 4 << 20
"""A call of the group protocol; some have a lower limit."""

TOPIC_NAMES_MAX: Final = 1_000
"""Topics that a ListTopics may name."""

COMMIT_METADATA_MAX_BYTES: Final = 65_536
"""Metadata of one committed offset; a coordinator may allow less."""

DISCONNECT_GRACE_MAX_MS: Final = 1_800_000
"""Longest disconnect grace."""

NAME_RULE: Final = f"1 to {NAME_MAX_CHARACTERS} letters, digits, '.', '_' and '-', and neither '.' nor '..'"
"""`is_name` in words."""

PARKED_PREFIX: Final = "parked/"
"""A commit under the name of a topic with this before it says that a partition of the topic is parked. No
topic has such a name, so nobody subscribes to it."""

_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{NAME_MAX_CHARACTERS}}}")


UNFIT: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""Control characters, line separators, what turns the direction of text, what has no width, and tags: with
one of them an id can look like another on a terminal and in a log, or change what the terminal shows."""


def has_unfit(text: str) -> bool:
    """Whether a text has what no id may have; for printable ASCII, which ids mostly are, without a search."""
    return not (text.isascii() and text.isprintable()) and UNFIT.search(text) is not None


def can_be_committed(topic: str) -> bool:
    """Whether a commit may name its topic so.

    More than `is_name` takes: clients divide what is no topic here too, and parked partitions have a prefix.
    """
    return 0 < len(topic) <= NAME_MAX_CHARACTERS and not has_unfit(topic)


def is_name(text: str) -> bool:
    """Whether a topic or a static member may have this name (Kafka's rule for topics)."""
    return _NAME.fullmatch(text) is not None and text not in {".", ".."}


def topic_of(name: str) -> str:
    """The topic that a commit under this name is about."""
    return name.removeprefix(PARKED_PREFIX)
