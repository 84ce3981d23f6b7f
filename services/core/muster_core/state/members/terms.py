"""What a member asks for when it joins."""

from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import coordinator_pb2

from muster_core.state.members.protocols import KINDS, NO_PROTOCOLS, Pairs, Protocols, pairs_of, protocols_of


class Terms(NamedTuple):
    """What a member asks for with a JoinGroup, and the log keeps in each record of the member.

    Each field has one name: here, in `JoinGroupRequest` and in the log's `Member`. Nothing else names a field
    in order to carry it along, so a new one is added here and in those two messages. Equal terms that are in
    use at a time are mostly one object: members of a group are mostly alike.

    Attributes:
        protocols: what the member supports, preferred first.
        session_timeout_ms: how long it may be silent.
        rebalance_timeout_ms: how long the others wait for it.
        disconnect_grace_ms: how long it may stay away after its stream broke; 0: its session.
        client_version: library that it uses, with its version, for people; empty: it did not say.
        weight: how much it can do beside others, once the group is an incremental one; 0: as much.
    """

    protocols: Protocols = NO_PROTOCOLS
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = 0
    disconnect_grace_ms: int = 0
    client_version: str = ""
    weight: int = 0


NO_TERMS = Terms()
"""Of who has not joined."""

_plain = attrgetter(*(name for name in Terms._fields if name != "protocols"))


def terms_of_join(request: coordinator_pb2.JoinGroupRequest) -> Terms:
    """The terms in a call."""
    terms = _alike(pairs_of(request.protocols), *_plain(request))
    if not terms.rebalance_timeout_ms:
        terms = _alike(*terms._replace(rebalance_timeout_ms=terms.session_timeout_ms))
    return terms


def terms_of_record(record: records_pb2.Member) -> Terms:
    """The terms in a record; nothing of the record is kept."""
    return _alike(pairs_of(record.protocols), *_plain(record))


def is_later_join(record: records_pb2.Member, before: records_pb2.Member) -> bool:
    """Whether a record says of a member what the one before said, but for the number of a later join."""
    if 0 < record.member_seq < before.member_seq:
        return False
    same = records_pb2.Member()
    same.CopyFrom(record)
    same.member_seq = before.member_seq
    return same == before


@lru_cache(maxsize=KINDS)
def _alike(protocols: Pairs, *plain: Any) -> Terms:
    return Terms(protocols_of(protocols), *plain)


@lru_cache(maxsize=KINDS)
def template_of(terms: Terms) -> records_pb2.Member:
    """What records of all members with these terms have in common; only to be copied."""
    fields: dict[str, Any] = terms._asdict()
    # as mappings: a message for each would be made twice
    fields["protocols"] = [{"name": name, "metadata": metadata} for name, metadata in terms.protocols]
    return records_pb2.Member(**fields)
