"""Damages of the catalog's log, each a few records at its end."""

from collections.abc import Callable, Iterable, Mapping

from kit.logs.log_builder import LogBuilder
from muster_protos.muster.log.v1 import records_pb2

Make = Callable[[LogBuilder], None]


def healthy_catalog(built: LogBuilder) -> LogBuilder:
    """Topics, a removal, a replacement of a node, a topic whose partitions have names, a restore, a feature.

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
    _named(built, "tenants", "acme", "globex")
    _alter(built, "tenants", {2: "initech", 0: "acme"}, weight=5)
    _alter(built, "tenants", {3: "hooli"}, removed=(1,))
    _alter(built, "tenants", {4: "globex"})
    _named(built, "regions", "eu", "us")
    _alter(built, "regions", {2: "ap"}, removed=(1,))
    built.add(records_pb2.Record(critical=True, restored=records_pb2.Restored(reason="a fire")))
    _enable(built, "catalog-snapshots")
    _enable(built, "member-secrets")
    _enable(built, "catalog-snapshots")  # with each of its snapshots
    return built


def _enable(built: LogBuilder, feature: str) -> None:
    enabled = records_pb2.FeatureEnabled(name=feature, version="0.2.0")
    built.add(records_pb2.Record(critical=True, feature_enabled=enabled))


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


def _named(built: LogBuilder, name: str, *partitions: str) -> None:
    stored = records_pb2.TopicStored(name=name, partitions=len(partitions))
    for partition in partitions:
        stored.names.partitions.add(name=partition)
    built.add(records_pb2.Record(topic_stored=stored))


def _alter(
    built: LogBuilder, topic: str, put: Mapping[int, str], *, removed: Iterable[int] = (), weight: int = 0
) -> None:
    record = records_pb2.PartitionsAltered(topic=topic, removed=removed)
    for number, name in sorted(put.items()):
        record.put.add(number=number, name=name, weight=weight)
    built.add(records_pb2.Record(critical=True, partitions_altered=record))


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


def _a_number_that_was_removed_used_again(built: LogBuilder) -> None:
    _alter(built, "tenants", {1: "umbrella"})


def _a_partition_renamed(built: LogBuilder) -> None:
    _alter(built, "tenants", {2: "umbrella"})


def _a_name_twice(built: LogBuilder) -> None:
    _alter(built, "tenants", {5: "acme"})


def _a_number_left_out(built: LogBuilder) -> None:
    _alter(built, "tenants", {6: "umbrella"})


def _a_partition_removed_twice(built: LogBuilder) -> None:
    _alter(built, "tenants", {}, removed=(1,))


def _a_name_in_a_topic_of_numbers(built: LogBuilder) -> None:
    _alter(built, "orders", {4: "acme"})


def _a_named_topic_that_gets_a_number(built: LogBuilder) -> None:
    _topic(built, "tenants", 6)


def _fewer_names_than_partitions(built: LogBuilder) -> None:
    stored = records_pb2.TopicStored(name="few", partitions=2)
    stored.names.partitions.add(name="one")
    built.add(records_pb2.Record(topic_stored=stored))


def _partitions_of_no_topic(built: LogBuilder) -> None:
    _alter(built, "never", {0: "acme"})


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


def _a_feature_enabled_twice(built: LogBuilder) -> None:
    _enable(built, "member-secrets")


def _a_group_in_the_catalog(built: LogBuilder) -> None:
    started = records_pb2.GenerationStarted(group_id="g", generation=1, protocol_type="consumer")
    built.add(records_pb2.Record(generation_started=started))  # no id of a group is hashed into the catalog


def _a_commit_in_the_catalog(built: LogBuilder) -> None:
    commit = records_pb2.OffsetCommitted(group_id="g", generation=-1, member_id="", member_seq=0)
    commit.offsets.add(topic="t", partition=0, offset=1, leader_epoch=-1, metadata="")
    built.add(records_pb2.Record(offset_committed=commit))


CATALOG_DAMAGES: dict[str, tuple[str, Make]] = {
    f"catalog: {make.__name__.strip('_').replace('_', ' ')}": (invariant, make)
    for invariant, make in (
        ("C1", _a_topic_with_fewer_partitions),
        ("C1", _a_topic_without_partitions),
        ("C1", _a_topic_stored_again_unchanged),
        ("C1", _a_zone_with_a_partition_that_is_not_there),
        ("C1", _a_partition_removed_twice),  # before its number is used again: the corpus has them in one log
        ("C1", _a_number_that_was_removed_used_again),
        ("C1", _a_partition_renamed),
        ("C1", _a_name_twice),
        ("C1", _a_number_left_out),
        ("C1", _a_name_in_a_topic_of_numbers),
        ("C1", _a_named_topic_that_gets_a_number),
        ("C1", _fewer_names_than_partitions),
        ("C1", _partitions_of_no_topic),
        ("C1", _a_removal_of_what_is_not_there),
        ("C2", _a_change_twice),
        ("C3", _two_replacements_of_one_number),
        ("C3", _a_node_replaced_that_was_elsewhere),
        ("C3", _a_configuration_out_of_nothing),
        ("C4", _a_feature_enabled_twice),
        ("L10", _a_group_in_the_catalog),
        ("L10", _a_commit_in_the_catalog),
    )
}
"""Name → the promise that must be found broken, and what writes the records."""
