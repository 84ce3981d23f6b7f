"""An archive of the classes that Spark loads when it starts: with it Java needs half of the CPU for that.

`./x test` makes it with the audit's libraries, once in an environment, where this machine's Java can.
Elsewhere Java starts as it always does. The client's tests import this, also where only the client is there.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""For each Java that tests start: none lives long enough for a thorough compiler, or a parallel collector.
Java takes the classes only from an archive that was written with the same collector."""

ARCHIVE = Path(sys.prefix, ".spark-classes.jsa")


def options() -> str:
    """What each Java that tests start is given."""
    return f"{OPTIONS} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.exists() else OPTIONS


def main() -> None:
    """Starts Spark once; Java writes the archive when it ends."""
    from muster_audit.spark.session import spark_session

    staged = ARCHIVE.with_suffix(f".{os.getpid()}")
    os.environ["JAVA_TOOL_OPTIONS"] = f"{OPTIONS} -XX:ArchiveClassesAtExit={staged} -Xlog:disable"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        with spark_session("classes", master="local[2]", folder=place, log=place / "spark.log") as spark:
            spark.range(10).selectExpr("sum(id) AS total").groupBy("total").count().collect()
            gateway = spark.sparkContext._gateway
        java: subprocess.Popen[bytes] = gateway.proc
        gateway.shutdown()
        assert java.stdin is not None
        java.stdin.close()  # by this it ends
        java.wait(300)
    if staged.exists():
        staged.replace(ARCHIVE)


if __name__ == "__main__":
    main()
