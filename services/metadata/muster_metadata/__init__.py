"""The metadata service: the only writer to Redis. Quorum log, leases, owner table, topic catalog, watch."""

from muster_metadata.initialise import Initialised, InitialiseError, initialise
from muster_metadata.metadata import Metadata, MetadataServer
from muster_metadata.settings import MetadataSettings

__all__ = ["InitialiseError", "Initialised", "Metadata", "MetadataServer", "MetadataSettings", "initialise"]
