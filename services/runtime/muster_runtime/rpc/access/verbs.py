"""What can be done, and with what."""

from enum import StrEnum


class Kind(StrEnum):
    """What a right is about."""

    __hash__ = str.__hash__  # an enum's own takes a microsecond, and each call looks rights up

    GROUP = "group"
    TOPIC = "topic"
    CLUSTER = "cluster"


class Verb(StrEnum):
    """What somebody does."""

    __hash__ = str.__hash__

    JOIN = "join"
    """Be a member of a group: join, sync, beat, leave."""
    COMMIT = "commit"
    """Commit offsets of a group."""
    READ = "read"
    """Read the offsets of a group."""
    DESCRIBE = "describe"
    """See that it is there, and its state."""
    CREATE = "create"
    """Create a topic."""
    ALTER = "alter"
    """Change the partitions of a topic."""
    DELETE = "delete"
    """Delete a topic."""
    ADMIN = "admin"
    """Everything with a group: delete it or its offsets, put members out, release it. Of the cluster: all."""


VERBS: dict[Kind, tuple[Verb, ...]] = {
    Kind.GROUP: (Verb.JOIN, Verb.COMMIT, Verb.READ, Verb.DESCRIBE, Verb.ADMIN),
    Kind.TOPIC: (Verb.CREATE, Verb.ALTER, Verb.DELETE, Verb.DESCRIBE),
    Kind.CLUSTER: (Verb.DESCRIBE, Verb.ADMIN),
}
"""What can be done with each; who has any right in a thing may describe it, too."""
