"""Audits of a cluster whose nodes die and come back, lose their data, and are set back (AUD-15)."""

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the audit's tests need Spark: `./x test tests/audit` brings it")

from safety.live_audits import story

pytestmark = [pytest.mark.cluster, pytest.mark.long]


@pytest.mark.parametrize("seed", [1, 2], ids=["trimmed", "whole"])
async def test_nobody_is_accused_and_a_rollback_is_found(seed: int, tmp_path: Path) -> None:
    """`./x safety live_audits` does it for longer."""
    said = await story(tmp_path, 6.0, seed)
    assert said["audited"], said
    assert said["verified"], said
