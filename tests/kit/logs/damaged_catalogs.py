"""Damages of the catalog's log, each a few records at its end."""

from collections.abc import Callable, Mapping

from kit.logs.log_builder import LogBuilder
from muster_protos.muster.log.v1 import records_pb2

Make = Callable[[LogBuilder], None]


def healthy_catalog(built: LogBuilder) -> LogBuilder:
    """Topics, a removal and a replacement of a node.

    Args:
        built: an empty log to write to.
    """
    built.genesis()
    built.claim("metadata-1")
    _topic(built, "orders", 3, b"1")
    _topic(built, "orders", 4, b"2")
    _topic(built, "near", 4, zones={"eu": (0, 3)})
    _topic(built, "near", 4, zones={"eu": (0, 1)})
    _topic(built, "gone", 1)
    _remove(built, "gone", b"3")
    _replace(built, 2, 1, "a:1", "d:1")
    return built


def _topic(
    built: LogBuilder,
    name: str,
    partitions: int,
    change: bytes = b"",
    *,
    zones: Mapping[str, tuple[int, ...]] | None = None,
) -> None:
    change_id = change.rjust(16, b"c") if change else b""
    stored = records_pb2.TopicStored(name=name, partitions=partitions, change_id=change_id)
    for zone, numbers in (zones or {}).items():
        stored.zones.zones.add(name=zone, partitions=numbers)
    built.add(records_pb2.Record(topic_stored=stored))


def _remove(built: LogBuilder, name: str, change: bytes = b"") -> None:
    change_id = change.rjust(16, b"c") if change else b""
    built.add(records_pb2.Record(topic_tombstone=records_pb2.TopicTombstone(name=name, change_id=change_id)))


def _replace(built: LogBuilder, configuration: int, node: int, old: str, new: str) -> None:
    replaced = records_pb2.NodeReplaced(
        configuration=configuration, node=node, old_address=old, new_address=new
    )
    built.add(records_pb2.Record(node_replaced=replaced))


def _a_topic_with_fewer_partitions(built: LogBuilder) -> None:
    _topic(built, "orders", 2)


def _a_topic_without_partitions(built: LogBuilder) -> None:
    _topic(built, "nothing", 0)


def _a_topic_stored_again_unchanged(built: LogBuilder) -> None:
    _topic(built, "near", 4, zones={"eu": (0, 1)})


def _a_zone_with_a_partition_that_is_not_there(built: LogBuilder) -> None:
    _topic(built, "orders", 5, zones={"eu": (0, 5)})


def _a_removal_of_what_is_not_there(built: LogBuilder) -> None:
    _remove(built, "never")


def _a_change_twice(built: LogBuilder) -> None:
    _topic(built, "twice", 1, b"9")
    _topic(built, "twice", 2, b"9")


def _two_replacements_of_one_number(built: LogBuilder) -> None:
    _replace(built, 2, 2, "b:1", "e:1")


def _a_node_replaced_that_was_elsewhere(built: LogBuilder) -> None:
    _replace(built, 3, 1, "a:1", "f:1")


def _a_configuration_out_of_nothing(built: LogBuilder) -> None:
    _replace(built, 7, 3, "c:1", "g:1")


CATALOG_DAMAGES: dict[str, tuple[str, Make]] = {
    f"catalog: {make.__name__.strip('_').replace('_', ' ')}": (invariant, make)
    for invariant, make in (
        ("C1", _a_topic_with_fewer_partitions),
        ("C1", _a_topic_without_partitions),
        ("C1", _a_topic_stored_again_unchanged),
        ("C1", _a_zone_with_a_partition_that_is_not_there),
        ("C1", _a_removal_of_what_is_not_there),
        ("C2", _a_change_twice),
        ("C3", _two_replacements_of_one_number),
        ("C3", _a_node_replaced_that_was_elsewhere),
        ("C3", _a_configuration_out_of_nothing),
    )
}
"""Name → the promise that must be found broken, and what writes the records."""
