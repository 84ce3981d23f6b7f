"""Merges a new picture of the cluster into the known one. Pure."""

from muster_protos.muster.internal.v1 import metadata_pb2
from muster_protos.muster.v1 import discovery_pb2


class ForeignClusterError(Exception):
    """A metadata instance belongs to another cluster, or to this one with another number of shards."""


def merge_cluster(known: discovery_pb2.Cluster | None, news: discovery_pb2.Cluster) -> discovery_pb2.Cluster:
    """The news, but with the known owner of each shard where the news has a lower epoch.

    Instances of metadata learn of claims at different times, so the one asked now may know less than the one
    asked before.

    Raises:
        ForeignClusterError: the news is about another cluster.
    """
    merged = discovery_pb2.Cluster()
    merged.CopyFrom(news)
    merged.version = 1 if known is None else known.version
    if known is None:
        return merged
    if known.cluster_id and news.cluster_id and known.cluster_id != news.cluster_id:
        raise ForeignClusterError("it serves another cluster")
    if known.shard_count != news.shard_count:
        raise ForeignClusterError(f"it has {news.shard_count} shards instead of {known.shard_count}")
    owners = {owner.shard: owner for owner in known.shards}
    for owner in news.shards:
        before = owners.get(owner.shard)
        if before is None or owner.shard_epoch >= before.shard_epoch:
            owners[owner.shard] = owner
    owned = [owners[shard] for shard in sorted(owners)]
    del merged.shards[:]
    merged.shards.extend(owned)
    if merged.SerializeToString(deterministic=True) != known.SerializeToString(deterministic=True):
        merged.version = known.version + 1
    return merged


def merge_catalog(
    known: metadata_pb2.TopicCatalog | None, news: metadata_pb2.TopicCatalog
) -> metadata_pb2.TopicCatalog:
    """The newer of two catalogs; the known one where they are equal.

    A change brings all topics, with a megabyte of names at most: they are neither copied nor, where the place
    is another one, compared.
    """
    if known is None or place(news) > place(known):
        return news
    return known if place(news) < place(known) or news == known else news


def place(catalog: metadata_pb2.TopicCatalog) -> tuple[int, int]:
    """Epoch and offset of a catalog's newest record."""
    return catalog.version.epoch, catalog.version.offset
