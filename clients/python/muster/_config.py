"""Settings of a member, with Kafka's names and defaults."""

import difflib
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from muster_protos import limits

from muster._errors import SettingsError
from muster._values import TopicPartition
from muster.assignors import RANGE, Assignor, resolve

MemberProtocol: TypeAlias = Literal["auto", "classic", "incremental"]
"""Kinds of groups that a member takes part in."""

LONGEST_TIMEOUT_MS = 1_800_000
ROLLOUT_HOLD = "MUSTER_ROLLOUT_HOLD_MS"
DISCONNECT_GRACE_MS = 3_000
"""Default of a dynamic member."""


class MemberSettings(TypedDict, total=False):
    """Settings of a member as keyword arguments; see `MemberConfig` for what they mean."""

    group_instance_id: str
    client_id: str
    rack_id: str
    weight: int
    rollout_hold_ms: int | None
    session_timeout_ms: int
    session: bool
    beat_interval_ms: int
    disconnect_grace_ms: int | None
    heartbeat_interval_ms: int
    rebalance_timeout_ms: int
    loop_block_limit_ms: int | None
    request_timeout_ms: int
    topic_refresh_interval_ms: int
    assignors: Sequence[str | Assignor] | None
    user_data: bytes
    protocol: MemberProtocol | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConfig:
    """Settings of a member. All times in ms; every value is checked when the object is made.

    Attributes:
        group_instance_id: makes the member static (KIP-345): it keeps its partitions over a restart that is
            shorter than the session time-out, and does not leave the group when it is closed. Empty: dynamic.
        client_id: name of the program; starts the member id that the coordinator makes. The
            host's name and the process id by default, such as `worker-7-4711`.
        rack_id: where the member runs, for assignors that use it. Empty: unknown.
        weight: how much the member can do beside the others, 1 to 100: in an incremental group it is given so
            much more of the work. Assignors of classic groups do not look at it.
        rollout_hold_ms: a deployment runs when the member starts: in an incremental group nothing is taken
            from a living member for so long, to give it to another one; later members that start make that
            longer, up to an hour in all. What nobody has is given out, and a group that starts holds nothing
            back. None: what the environment variable MUSTER_ROLLOUT_HOLD_MS says, else 0; the attribute then
            has that value.
        session_timeout_ms: how long the member may be silent before its partitions go to others.
        session: keep one stream open to each coordinator, shared by all members of a `Cluster`; False: make
            unary calls of everything, as with a server that has no streams.
        beat_interval_ms: time between two beats on such a stream; at most a third of `disconnect_grace_ms`.
            A stream beats at the shortest interval of its members, and at least three times per session
            time-out, or rebalance time-out if that is shorter.
        disconnect_grace_ms: how long the member may be away after its stream broke, e.g. because its process
            was killed, before its partitions go to others. 0: its session time-out. None: 3,000, or 0 for a
            static member, whose restart is to move nothing; the attribute then has that value.
        heartbeat_interval_ms: time between two Heartbeat calls, without a stream. There are at least three
            per session time-out, or rebalance time-out if that is shorter: with fewer a member would hear of
            a rebalance too late, and lose its partitions to a single answer that is late.
        rebalance_timeout_ms: how long the group waits for it to give its partitions up and join again. If
            shorter than the session time-out, it also limits how long the member works on without an answer
            of a coordinator: the group may have gone on without it.
        loop_block_limit_ms: how long a blocked event loop may keep the membership: meanwhile a thread beats.
            What else is said of silence holds from then on. 0: no thread beats. None: the session time-out;
            the attribute then has that value.
        request_timeout_ms: how long one call may take (JoinGroup: the rebalance time-out and 5 s, if longer).
        topic_refresh_interval_ms: how often a leader checks whether its topics changed.
        assignors: how partitions are assigned in a classic group, preferred first; the group uses one that
            all members have. With `cooperative-sticky` members work on while the group rebalances; a fleet
            goes over to it with `["cooperative-sticky", "range"]`. None: `["range"]`.
        user_data: what an assignor of your own gets to know of the member, at most 64 KiB.
        protocol: `incremental`: the coordinator assigns, and only what moves stops. It needs a cluster with
            the feature `incremental-groups`, and takes no `assignors` and no `user_data`. `classic`: a
            leader assigns, all members take part in each change. `auto`: incremental, or classic where the
            cluster does not have the feature, or the group has classic members; `assignors` and `user_data`
            are used there. None: `classic` where `assignors` or `user_data` are given, which only classic
            groups use, else `auto`; the attribute then has that value.
    """

    group_instance_id: str = ""
    client_id: str = field(default_factory=lambda: f"{socket.gethostname()[:100]}-{os.getpid()}")
    rack_id: str = ""
    weight: int = 1
    rollout_hold_ms: int | None = None
    session_timeout_ms: int = 45_000
    session: bool = True
    beat_interval_ms: int = 500
    disconnect_grace_ms: int | None = None
    heartbeat_interval_ms: int = 3_000
    rebalance_timeout_ms: int = 300_000
    loop_block_limit_ms: int | None = None
    request_timeout_ms: int = 30_000
    topic_refresh_interval_ms: int = 30_000
    assignors: Sequence[str | Assignor] | None = None
    user_data: bytes = b""
    protocol: MemberProtocol | None = None

    def __post_init__(self) -> None:
        grace_ms = self.disconnect_grace_ms
        if grace_ms is None:
            grace_ms = 0 if self.group_instance_id else DISCONNECT_GRACE_MS
            object.__setattr__(self, "disconnect_grace_ms", grace_ms)
        check_between("session_timeout_ms", self.session_timeout_ms, 1, LONGEST_TIMEOUT_MS)
        check_between("heartbeat_interval_ms", self.heartbeat_interval_ms, 1, LONGEST_TIMEOUT_MS)
        check_between("beat_interval_ms", self.beat_interval_ms, 100, 60_000)
        check_between("disconnect_grace_ms", grace_ms, 0, limits.DISCONNECT_GRACE_MAX_MS)
        if not isinstance(self.session, bool):
            raise SettingsError("session", f"must be True or False, not {self.session!r}")
        if self.session and 0 < grace_ms < 3 * self.beat_interval_ms:
            raise SettingsError(
                "disconnect_grace_ms",
                f"{grace_ms} must be 0 or at least three times beat_interval_ms ({self.beat_interval_ms})",
            )
        check_between("rebalance_timeout_ms", self.rebalance_timeout_ms, 1, LONGEST_TIMEOUT_MS)
        limit_ms = self.session_timeout_ms if self.loop_block_limit_ms is None else self.loop_block_limit_ms
        check_between("loop_block_limit_ms", limit_ms, 0, LONGEST_TIMEOUT_MS)
        object.__setattr__(self, "loop_block_limit_ms", limit_ms)
        check_between("request_timeout_ms", self.request_timeout_ms, 1, LONGEST_TIMEOUT_MS)
        check_between("topic_refresh_interval_ms", self.topic_refresh_interval_ms, 100, 86_400_000)
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise SettingsError(
                "heartbeat_interval_ms",
                f"{self.heartbeat_interval_ms} must be below session_timeout_ms ({self.session_timeout_ms})",
            )
        if self.group_instance_id != "":
            check_name("group_instance_id", self.group_instance_id)
        check_at_most("client_id", self.client_id, limits.ID_MAX_BYTES)
        check_at_most("rack_id", self.rack_id, limits.ID_MAX_BYTES)
        check_between("weight", self.weight, 1, limits.MEMBER_WEIGHT_MAX)
        hold_ms = _hold_of_environment() if self.rollout_hold_ms is None else self.rollout_hold_ms
        check_between("rollout_hold_ms", hold_ms, 0, limits.ROLLOUT_HOLD_MAX_MS)
        object.__setattr__(self, "rollout_hold_ms", hold_ms)
        if isinstance(self.assignors, str):
            raise SettingsError("assignors", f"must be a list, such as [{self.assignors!r}]")
        asked: MemberSettings = {
            "protocol": self.protocol,
            "assignors": self.assignors,
            "user_data": self.user_data,
        }
        object.__setattr__(self, "protocol", protocol_of(asked))
        if self.assignors is not None:
            object.__setattr__(self, "assignors", resolve(self.assignors))
        if not isinstance(self.user_data, bytes) or len(self.user_data) > limits.USER_DATA_MAX_BYTES:
            raise SettingsError("user_data", f"must be bytes, at most {limits.USER_DATA_MAX_BYTES} of them")

    @property
    def block_limit_ms(self) -> int:
        """`loop_block_limit_ms`, as a number."""
        return self.loop_block_limit_ms or 0

    @property
    def grace_ms(self) -> int:
        """`disconnect_grace_ms` with a session stream, 0 without one."""
        return (self.disconnect_grace_ms or 0) if self.session else 0

    @property
    def resolved_assignors(self) -> tuple[Assignor, ...]:
        """`assignors`, or what takes their place, with names replaced by the assignors of that name."""
        return resolve((RANGE,) if self.assignors is None else self.assignors)


def protocol_of(settings: MemberSettings) -> MemberProtocol:
    """Checks the kind of group that a member takes part in, and returns it, also where none is named.

    Raises:
        SettingsError: there is no such kind, or it does not use what is given.
    """
    protocol = settings.get("protocol")
    given = [name for name in ("assignors", "user_data") if settings.get(name) not in (None, b"")]
    if protocol is None:
        return "classic" if given else "auto"
    if protocol not in get_args(MemberProtocol):
        raise SettingsError("protocol", f"must be 'auto', 'classic' or 'incremental', not {protocol!r}")
    if protocol == "incremental" and given:
        raise SettingsError(
            given[0],
            "is used in classic groups alone, where a member assigns: leave it out, or have protocol='auto'",
        )
    return protocol


def _hold_of_environment() -> int:
    """What a deployment sets for all its workers.

    Raises:
        SettingsError: it is no number.
    """
    value = os.environ.get(ROLLOUT_HOLD, "") or "0"
    try:
        return int(value)
    except ValueError:
        raise SettingsError(ROLLOUT_HOLD, f"must be a whole number, not {value!r}") from None


def check_group_id(group_id: str) -> str:
    """Checks a group id and returns it.

    Raises:
        SettingsError: it is empty, too long, or not valid UTF-8.
    """
    if isinstance(group_id, str) and not group_id:
        raise SettingsError("group_id", "must not be empty")
    return check_at_most("group_id", group_id, limits.ID_MAX_BYTES)


def check_name(what: str, name: str) -> str:
    """Checks a topic name or static id and returns it.

    Raises:
        SettingsError: it breaks `NAME_RULE`.
    """
    if not isinstance(name, str):
        raise SettingsError(what, f"must be text, not {name!r}")
    if not limits.is_name(name):
        raise SettingsError(what, f"{name!r}: must be {limits.NAME_RULE}")
    return name


def check_topics(topics: str | Sequence[str]) -> tuple[str, ...]:
    """Checks topic names and returns them, each once and in order.

    Raises:
        SettingsError: there is none, or one breaks `NAME_RULE`.
    """
    if not isinstance(topics, Iterable) or isinstance(topics, bytes | Mapping):
        raise SettingsError("topics", f"must be one name or several, not {topics!r}")
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names:
        raise SettingsError("topics", "name at least one topic")
    return tuple(sorted({check_name("topics", name) for name in names}))


def check_partitions(partitions: int) -> int:
    """Checks a partition count and returns it.

    Raises:
        SettingsError: it is out of bounds.
    """
    check_between("partitions", partitions, 1, limits.TOPIC_PARTITIONS_MAX)
    return partitions


def check_partitions_or_names(partitions: int | Iterable[str] | None) -> int | tuple[str, ...] | None:
    """Checks how many partitions are asked for, or their names, and returns that; None: neither is.

    Raises:
        SettingsError: it cannot be.
    """
    if partitions is None:
        return None
    return check_partitions(partitions) if isinstance(partitions, int) else check_partition_names(partitions)


def check_partition_names(names: Iterable[str]) -> tuple[str, ...]:
    """Checks names of partitions and returns them.

    Raises:
        SettingsError: there is none, one breaks `NAME_RULE`, or one is given more than once.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise SettingsError("partitions", f"must be a number or a list of names, not {names!r}")
    found = tuple(check_name("partitions", name) for name in names)
    if not found:
        raise SettingsError("partitions", "name at least one partition")
    if len(set(found)) < len(found):
        twice = next(name for index, name in enumerate(found) if name in found[:index])
        raise SettingsError("partitions", f"{twice!r} is given more than once")
    return found


def check_partition(name: str, partition: int) -> int:
    """Checks the number of a partition and returns it.

    Args:
        name: what it is for.
        partition: the number.

    Raises:
        SettingsError: it is out of bounds.
    """
    check_between(name, partition, 0, limits.TOPIC_PARTITIONS_MAX - 1)
    return partition


def check_between(name: str, value: int, low: int, high: int) -> None:
    """Checks a number.

    Raises:
        SettingsError: it is no whole number, or out of bounds.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingsError(name, f"must be a whole number, not {value!r}")
    if not low <= value <= high:
        raise SettingsError(name, f"{value} is not between {low} and {high}")


def check_at_most(name: str, text: str, limit: int) -> str:
    """Checks a text and returns it.

    Raises:
        SettingsError: it is no text that UTF-8 can hold, or too long.
    """
    if not isinstance(text, str):
        raise SettingsError(name, f"must be text, not {text!r}")
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise SettingsError(name, f"{text!r} is no text that UTF-8 can hold") from None
    if size_bytes > limit:
        raise SettingsError(name, f"has {size_bytes} bytes, at most {limit} are allowed")
    return text


def check_unless_zero(name: str, value: int, low: int, high: int) -> None:
    """Checks a number that may also be 0.

    Raises:
        SettingsError: it is no whole number, or out of bounds.
    """
    if isinstance(value, bool) or value != 0:
        check_between(name, value, low, high)


def check_texts(name: str, texts: Iterable[str]) -> list[str]:
    """Checks a list of texts and returns it; one text is not meant as the list of its characters.

    Raises:
        SettingsError: it is no list, or something in it is no text.
    """
    if isinstance(texts, str):
        raise SettingsError(name, f"must be a list, such as [{texts!r}]")
    if not isinstance(texts, Iterable):
        raise SettingsError(name, f"must be a list of texts, not {texts!r}")
    listed = list(texts)
    for text in listed:
        if not isinstance(text, str):
            raise SettingsError(name, f"must be a list of texts, and {text!r} is none")
    return listed


def check_partition_list(name: str, partitions: object) -> list[TopicPartition]:
    """Checks a list of partitions and returns it; pairs of topic and number do too.

    Raises:
        SettingsError: it is no list, or something in it is no partition.
    """
    if isinstance(partitions, TopicPartition):
        raise SettingsError(name, f"must be a list, such as [{partitions!r}]")
    if isinstance(partitions, str) or not isinstance(partitions, Iterable):
        raise SettingsError(name, f"must be a list of TopicPartition, not {partitions!r}")
    return [_partition(name, entry) for entry in partitions]


def _partition(name: str, entry: Any) -> TopicPartition:
    match entry:
        case (str(topic), number):
            check_between(name, number, 0, (1 << 31) - 1)
            return TopicPartition(topic, number)
        case _:
            raise SettingsError(name, f"must be a list of TopicPartition, and {entry!r} is none")


def check_keywords(function: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Checks the names of settings.

    Raises:
        TypeError: one is not known; says which one is meant, if one is like it.
    """
    names = list(known)
    for name in given:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            meant = f"; did you mean {close[0]!r}?" if close else f", only {', '.join(sorted(names))}"
            raise TypeError(f"{function} has no setting {name!r}{meant}")
