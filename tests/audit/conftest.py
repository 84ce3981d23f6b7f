"""What the audit's tests share: one Spark session for each process of them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOR_SMALL_DATA = {
    "spark.sql.adaptive.enabled": "false",  # it plans anew after each stage
    "spark.sql.codegen.wholeStage": "false",  # compiling takes longer than what is compiled
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",  # expressions, too
    "spark.sql.shuffle.partitions": "1",
}
"""For the plans of some hundred rows. Commands that tests start as processes have what users have."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """Spark with two cores; what runs in this process with a session of its own gets this one."""
    from muster_audit.spark.session import spark_session

    folder = tmp_path_factory.mktemp("spark")
    with spark_session("tests", master="local[2]", folder=folder, log=folder / "spark.log") as session:
        for name, value in FOR_SMALL_DATA.items():
            session.conf.set(name, value)
        yield session
