"""The promises about the catalog: each can be broken, and a healthy catalog breaks none."""

import pytest
from kit.logs.damaged_catalogs import CATALOG_DAMAGES, healthy_catalog
from kit.logs.log_builder import LogBuilder, page_of
from muster_core.audit.catalog_audit import CatalogAudit
from muster_core.audit.invariants import Findings
from muster_protos.muster.log.v1 import records_pb2


def check(built: LogBuilder) -> Findings:
    cluster = records_pb2.Genesis(cluster_id=built.cluster_id, shard_count=built.shard_count)
    audit = CatalogAudit(built.shard, cluster=cluster)
    audit.add_page(page_of(built.entries))
    return audit.finish(built.end)


def catalog() -> LogBuilder:
    return healthy_catalog(LogBuilder(shard=50))


def test_a_healthy_catalog_breaks_nothing_and_is_really_looked_at() -> None:
    findings = check(catalog())
    assert findings.violations == []
    assert all(findings.checked[invariant] for invariant in ("C1", "C2", "C3", "C4", "G12"))


@pytest.mark.parametrize("name", CATALOG_DAMAGES)
def test_a_damaged_catalog_is_found_out(name: str) -> None:
    invariant, make = CATALOG_DAMAGES[name]
    built = catalog()
    make(built)
    assert set(check(built).broken) == {invariant}
