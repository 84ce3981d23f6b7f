"""Partitions as commands call them: by name where there are names."""

import pytest
from muster import Topic, TopicPartition
from muster._errors import TopicError
from muster.cli._keys import MOST_NAMES, Keys
from muster.cli._partitions import _number

TENANTS = Topic("tenants", 3, names=("acme", "", "initech"))


def test_names_stand_for_numbers_where_the_catalog_has_them() -> None:
    keys = Keys([TENANTS, Topic("sites", 4)])
    assert keys.of_topic("tenants", [0, 2]) == "tenants acme initech"
    assert keys.of_topic("sites", [0, 1, 3]) == "sites 0-1 3"
    assert keys.in_words(TopicPartition("tenants", 0)) == "tenants-0 (acme)"
    assert keys.in_words(TopicPartition("tenants", 1)) == "tenants-1", "it was removed"
    assert keys.in_words(TopicPartition("tenants", 7)) == "tenants-7", "the catalog does not know it yet"
    assert keys.in_words(TopicPartition("gone", 7)) == "gone-7"


def test_a_long_list_of_names_ends() -> None:
    many = Topic("many", 60, names=tuple(f"n{number}" for number in range(60)))
    assert Keys([many]).of_topic("many", range(60)).endswith(f"n{MOST_NAMES - 1} … and 10 more")


def test_a_partition_is_found_by_name_or_number() -> None:
    assert _number("tenants", [TENANTS], "initech") == 2
    assert _number("tenants", [TENANTS], "1") == 1, "one that was removed may be parked still"
    assert _number("gone", [], "5") == 5
    for nobody in ("globex", "-1", str(1 << 32)):
        with pytest.raises(TopicError, match="has no partition"):
            _number("tenants", [TENANTS], nobody)
