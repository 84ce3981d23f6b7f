"""What a member asks for is carried from the call to the log and back, whatever it is."""

from typing import Any

from muster_core.state.members.member import Member
from muster_core.state.members.protocols import Protocols
from muster_core.state.members.terms import Terms, terms_of_join
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import coordinator_pb2

OF_ONE_MEMBER = {
    "member_id",
    "group_instance_id",
    "client_id",
    "host",
    "member_seq",
    "identity",
    "secret_hash",
    "process_id",
}
OF_ANY_SIZE = {"protocols", "client_version"}
NOT_WRITTEN_YET = {"server_assignor"}


def test_every_term_travels_from_a_join_to_the_record_and_back() -> None:
    numbers: dict[str, Any] = {
        name: 1_000 + index for index, name in enumerate(Terms._fields) if name not in OF_ANY_SIZE
    }
    numbers["client_version"] = "muster-python/0.2.0"
    protocols = [
        coordinator_pb2.GroupProtocol(name="sticky", metadata=b"s"),
        coordinator_pb2.GroupProtocol(name="range"),
    ]
    request = coordinator_pb2.JoinGroupRequest(client_id="c", member_seq=7, protocols=protocols, **numbers)
    member = Member("c-1")
    member.update_from(request, terms_of_join(request), "10.0.0.9")
    record = member.to_record()
    read_back = Member("c-1")
    read_back.adopt(records_pb2.Member.FromString(record.SerializeToString()))
    asked = Terms(Protocols([("sticky", b"s"), ("range", b"")]), **numbers)
    assert member.terms == read_back.terms == asked
    assert (read_back.client_id, read_back.host, read_back.join_seq) == ("c", "10.0.0.9", 7)


def test_every_field_of_the_record_is_carried_by_somebody() -> None:
    in_the_record = set(records_pb2.Member.DESCRIPTOR.fields_by_name)
    assert in_the_record == {*Terms._fields, *OF_ONE_MEMBER, *NOT_WRITTEN_YET}


def test_members_that_ask_for_the_same_share_it() -> None:
    requests = [
        coordinator_pb2.JoinGroupRequest(client_id=name, session_timeout_ms=9_000) for name in ("a", "b")
    ]
    first, second = map(terms_of_join, requests)
    assert first is second
    assert first.rebalance_timeout_ms == 9_000


def test_all_terms_but_those_that_are_counted_have_a_fixed_size() -> None:
    """One that has none must be counted in `Member.size_bytes`."""
    assert {type(value) for name, value in Terms()._asdict().items() if name not in OF_ANY_SIZE} == {int}
    member = Member("c-1")
    before = member.size_bytes
    member.terms = Terms(client_version="muster-python/0.2.0")
    assert member.size_bytes == before + 19
