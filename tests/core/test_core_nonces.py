"""Whether a nonce was used before, by a list of all and by the spans they come in."""

import random
import secrets
from collections import Counter

import pytest
from muster_coordinator.log.log_client import Nonces
from muster_core.audit.nonce_spans import NonceSpans, NoncesUnclear
from muster_core.audit.nonces import NONE_LATE, NonceSet
from muster_core.position import Position


def first(number: int) -> Position:
    return Position(1, number)


def test_a_page_with_a_known_nonce_is_not_taken_by_a_set() -> None:
    book = NonceSet()
    assert book.add_all([b"a" * 16, b"b" * 16], first(1))
    assert not book.add_all([b"c" * 16, b"b" * 16], first(3))
    assert not book.add_all([b"c" * 16, b"c" * 16], first(3))
    assert book.add(b"c" * 16, first(3))


def unclear(book: NonceSpans, *pages: list[bytes]) -> bool:
    """Whether the spans of pages do not show that no nonce repeats."""
    try:
        for page in pages:
            book.add_all(page, first(1))
        return book.late(20) is not NONE_LATE
    except NoncesUnclear:
        return True


class TestNonceSpans:
    def test_coordinators_that_follow_each_other_have_a_span_for_each_turn(self) -> None:
        one, two, book = Nonces(), Nonces(), NonceSpans()
        turns = [[maker.next() for _ in range(50)] for maker in (one, two, one)]
        pages = [[*turns[0], *turns[1][:20]], turns[1][20:], turns[2]]  # a page has the end of the first one
        assert not unclear(book, *pages)
        assert len(book._spans) == 3

    @pytest.mark.parametrize("page", range(4))
    @pytest.mark.parametrize("index", [0, 1, 49])
    def test_a_repeat_is_unclear_wherever_it_is(self, page: int, index: int) -> None:
        maker = Nonces()
        pages = [[maker.next() for _ in range(50)] for _ in range(4)]
        repeated = pages[1][10]
        if (page, index) != (1, 10):
            pages[page][index] = repeated
        assert unclear(NonceSpans(), *pages)

    def test_nonces_without_order_are_unclear_before_they_take_memory(self) -> None:
        book = NonceSpans()
        pages = [[secrets.token_bytes(16) for _ in range(400)] for _ in range(60)]
        assert not unclear(NonceSpans(), *pages[:20])
        assert unclear(book, *pages)
        assert len(book._spans) < 60 * 400


def test_spans_are_clear_only_where_no_nonce_repeats() -> None:
    draw, seen = random.Random(3), Counter[bool]()
    for _ in range(3_000):
        book, taken = NonceSpans(), list[bytes]()
        for _ in range(draw.randint(1, 4)):
            begin, prefix = draw.randrange(40), bytes([draw.randrange(2)]) * 8
            numbers = range(begin, begin + draw.randint(1, 6))
            page = [prefix + number.to_bytes(8, "big") for number in numbers]
            if draw.random() < 0.2:
                draw.shuffle(page)
            if draw.random() < 0.3:
                assert all(book.add(nonce, first(1)) for nonce in page)
            else:
                assert book.add_all(page, first(1))
            taken += page
        clear = not unclear(book)
        assert not clear or len(set(taken)) == len(taken)
        seen[clear] += 1
    assert min(seen.values()) > 500
