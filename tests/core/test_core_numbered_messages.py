"""Messages that differ in a number alone are read as if each had been added by itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from muster_core import numbered_messages as module
from muster_core.numbered_messages import numbered_messages
from muster_core.position import Position
from muster_core.protocol.kept_tokens import KeptTokens
from muster_protos.muster.log.v1 import records_pb2
from muster_protos.muster.v1 import common_pb2
from muster_protos.muster.v1.coordinator_pb2 import SyncGroupResponse

MEMBER, TOKEN = records_pb2.MemberAssignment, records_pb2.KeptToken
EDGES = [edge + near for edge in (1, 1 << 7, 1 << 14, 1 << 21, 1 << 28, 1 << 32) for near in (-1, 0)][:-1]


@given(st.text(max_size=300), st.lists(st.integers(0, (1 << 32) - 1) | st.sampled_from(EDGES), max_size=20))
def test_each_is_there_with_its_number(topic: str, numbers: list[int]) -> None:
    position = common_pb2.Position(epoch=3, offset=1 << 40)
    expected = MEMBER(member_id="m")
    for number in (7, *numbers):
        expected.kept_tokens.add(topic=topic, partition=number, position=position)
    made = MEMBER(member_id="m", kept_tokens=expected.kept_tokens[:1])
    like = TOKEN(topic=topic, position=position).SerializeToString()
    made.MergeFromString(
        numbered_messages(MEMBER.KEPT_TOKENS_FIELD_NUMBER, like, TOKEN.PARTITION_FIELD_NUMBER, numbers)
    )
    assert made == expected
    assert made.SerializeToString() == expected.SerializeToString(), "the log has the same bytes"


@given(st.lists(st.tuples(st.sampled_from("tu"), st.integers(1, 2), st.integers(0, 30))))
def test_tokens_are_told_in_their_order_whether_few_or_many_are_alike(
    runs: list[tuple[str, int, int]],
) -> None:
    kept: list[records_pb2.KeptToken] = []
    expected = SyncGroupResponse()
    for topic, offset, count in runs:
        position = Position(3, offset)
        for number in range(count):
            kept.append(TOKEN(topic=topic, partition=number, position=position.to_proto()))
            expected.kept_tokens.add(topic=topic, partition=number, token=position.token)
    assert KeptTokens().added(SyncGroupResponse(), kept) == expected


@pytest.mark.parametrize(("numbers", "headers"), [([0], 1), ([*range(300)], 2)])
def test_only_headers_that_are_needed_are_made(
    monkeypatch: pytest.MonkeyPatch, numbers: list[int], headers: int
) -> None:
    """Of twenty thousand topics with a partition each, others take a fifth of a second for nothing."""
    made: list[tuple[int, int]] = []
    header = module.header

    def noted(field: int, length: int) -> bytes:
        made.append((field, length))
        return header(field, length)

    monkeypatch.setattr(module, "header", noted)
    numbered_messages(MEMBER.KEPT_TOKENS_FIELD_NUMBER, b"", TOKEN.PARTITION_FIELD_NUMBER, numbers)
    assert len(made) == headers
