"""Lists and enables the cluster's features."""

import structlog
from muster_core.features import FEATURE_NAMES
from muster_protos.muster.internal.v1 import metadata_pb2

from muster_metadata.catalog.catalog import CatalogLog
from muster_metadata.cluster.leases import DEAD, LeaseObserver
from muster_metadata.cluster.servers import Servers

log = structlog.get_logger()

_NO_MAJORITY = "no majority of the log's nodes answered; try again"


class Features:
    """Lists features, and enables one when every server that is alive knows it.

    Args:
        catalog: stores the enabled features.
        servers: knows the instances of metadata and discovery.
        observer: knows the coordinators.
        version: of this software.
    """

    def __init__(self, catalog: CatalogLog, servers: Servers, observer: LeaseObserver, version: str) -> None:
        self._catalog = catalog
        self._servers = servers
        self._observer = observer
        self._version = version

    async def alive(self) -> list[metadata_pb2.Server] | None:
        """Every server that may be alive, by role and name; None if no majority of the nodes answers."""
        rows = await self._servers.alive()
        if rows is None:
            return None
        coordinators = [
            metadata_pb2.Server(
                role="coordinator",
                name=row.node_id,
                version=row.version,
                features=row.features,
                internal_host=row.internal_host,
                internal_port=row.internal_port,
            )
            for row, state in self._observer.rows()
            if state != DEAD
        ]
        return [*coordinators, *(row.to_proto() for row in rows)]

    async def list(self) -> metadata_pb2.ListFeaturesResponse:
        """The enabled features, those that this instance knows, and the servers that are alive."""
        return metadata_pb2.ListFeaturesResponse(
            enabled=sorted(self._catalog.features), known=FEATURE_NAMES, servers=await self.alive() or ()
        )

    async def enable(self, name: str) -> metadata_pb2.EnableFeatureResponse:
        """Enables a feature for good, unless a server is alive that does not know it.

        A server that starts meanwhile is refused afterwards: each lease and each view is checked.
        """
        if name not in FEATURE_NAMES:
            return _no(
                metadata_pb2.ENABLE_FEATURE_OUTCOME_UNKNOWN_FEATURE,
                f"version {self._version} of metadata knows no feature of this name",
            )
        if name not in self._catalog.features:
            servers = await self.alive()
            if servers is None:
                return _no(metadata_pb2.ENABLE_FEATURE_OUTCOME_NOT_AVAILABLE, _NO_MAJORITY)
            lacking = [server for server in servers if name not in server.features]
            if lacking:
                return _no(
                    metadata_pb2.ENABLE_FEATURE_OUTCOME_SERVER_LACKS_IT,
                    "servers are alive that do not know it: replace them by this version first",
                    lacking,
                )
            if not await self._catalog.enable(name, self._version):
                return _no(metadata_pb2.ENABLE_FEATURE_OUTCOME_NOT_AVAILABLE, _NO_MAJORITY)
            log.info("feature_enabled", feature=name)
        return metadata_pb2.EnableFeatureResponse(outcome=metadata_pb2.ENABLE_FEATURE_OUTCOME_ENABLED)


def _no(
    outcome: "metadata_pb2.EnableFeatureOutcome.ValueType",
    message: str,
    lacking: list[metadata_pb2.Server] | None = None,
) -> metadata_pb2.EnableFeatureResponse:
    return metadata_pb2.EnableFeatureResponse(outcome=outcome, message=message, lacking=lacking or ())
