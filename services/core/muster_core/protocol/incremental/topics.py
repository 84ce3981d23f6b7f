"""The catalog, as decisions about incremental groups see it."""

from muster_core.catalog import Catalog
from muster_core.incremental.targets.target import Topics


def topics_of(catalog: Catalog) -> Topics:
    """The topics of a catalog."""
    return Topics(catalog.partitions, catalog.incarnations, catalog.removed, catalog.weights, catalog.zones)
