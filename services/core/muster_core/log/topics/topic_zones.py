"""Zones of a topic's partitions: what may be stored, and in which form."""

from muster_protos.limits import ID_MAX_BYTES
from muster_protos.muster.v1 import common_pb2, discovery_pb2

MAX_ZONES = 64
"""Zones of a topic."""

MAX_ZONE_BYTES = 1 << 20
"""What the zones of all topics take: each change of the catalog is sent to every server."""

_UNPRINTABLE = "must be 1 to 255 bytes of printable characters"


def zones_problem(topic: discovery_pb2.Topic) -> str:
    """Why a topic cannot have the zones that it gives; empty: it can."""
    if len(topic.zones.zones) > MAX_ZONES:
        return f"topic.zones: a topic has at most {MAX_ZONES} zones, not {len(topic.zones.zones):,}"
    names: set[str] = set()
    for index, zone in enumerate(topic.zones.zones):
        field = f"topic.zones[{index}]"
        if not zone.name.isprintable() or not 1 <= len(zone.name.encode()) <= ID_MAX_BYTES:
            return f"{field}.name {_UNPRINTABLE}"
        if zone.name in names:
            return f"{field}: zone {zone.name!r} is given more than once"
        names.add(zone.name)
        if not zone.partitions:
            return f"{field}: zone {zone.name!r} has no partitions"
        if len(set(zone.partitions)) < len(zone.partitions):
            return f"{field}: a partition of zone {zone.name!r} is given more than once"
        if (highest := max(zone.partitions)) >= topic.partitions:
            last = topic.partitions - 1
            return f"{field}: zone {zone.name!r} has partition {highest}, and the topic's end at {last}"
    return ""


def stored_form(zones: common_pb2.TopicZones) -> bytes:
    """The serialised zones in the one order in which they are stored; empty: there are none."""
    ordered = common_pb2.TopicZones(
        zones=[
            common_pb2.TopicZones.Zone(name=zone.name, partitions=sorted(zone.partitions))
            for zone in sorted(zones.zones, key=lambda zone: zone.name)
        ]
    )
    return ordered.SerializeToString(deterministic=True)


def zones_of(stored: bytes) -> common_pb2.TopicZones | None:
    """What `stored_form` gave; None: there are none."""
    return common_pb2.TopicZones.FromString(stored) if stored else None
