"""Starts Spark: with a Java that is found, quiet, and with nothing left on the machine but its log file."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from muster_audit.spark.java import find_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"
_JVM_OPTIONS = ("-XX:+IgnoreUnrecognizedVMOptions", "-XX:TieredStopAtLevel=1")
"""The work is done in Python, so a JVM that optimises itself for long only takes processors away from it."""

_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.append = true
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{ISO8601}} %p %c: %m%n%ex
"""


@contextmanager
def spark_session(
    name: str, *, master: str = "", folder: Path, memory_mb: int = 1024, log: Path | None = None
) -> Iterator["SparkSession"]:
    """A Spark session, ended afterwards; one that the process has already is used, and left as it is.

    Args:
        name: what the job is called in Spark's own pages.
        master: address of the cluster; empty: what `spark-submit` gave, else all cores of this machine.
        folder: for Spark's working files.
        memory_mb: heap of the driver, MiB.
        log: file that takes Spark's own log; absent: it goes to standard error.

    Raises:
        JavaMissing: one sentence with the fix.
    """
    import pyarrow  # noqa: F401  without it Spark's workers die without saying why
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        running = SparkSession.active()
    except PySparkRuntimeError:  # there is none
        running = None
    if running is not None:
        yield running
        return
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["JAVA_HOME"] = str(find_java_home(os.environ, folder))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    options = [f"-Dderby.system.home={folder}", *_JVM_OPTIONS]
    if log is not None:
        settings = folder / "log4j2.properties"
        settings.write_text(_LOGGING.format(log=log.resolve().as_posix()), "utf-8")
        options.append(f"-Dlog4j2.configurationFile={settings.resolve().as_uri()}")
    builder = SparkSession.builder.appName(name)
    for key, value in {
        "spark.driver.memory": f"{memory_mb}m",
        "spark.driver.extraJavaOptions": " ".join(options),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
        "spark.python.worker.faulthandler.enabled": "true",
    }.items():
        builder = builder.config(key, value)
    chosen = master or os.environ.get("MASTER", "")
    if chosen or "SPARK_ENV_LOADED" not in os.environ:
        builder = builder.master(chosen or DEFAULT_MASTER)
    if (chosen or DEFAULT_MASTER).startswith("local"):
        builder = builder.config("spark.driver.host", "127.0.0.1").config(
            "spark.driver.bindAddress", "127.0.0.1"
        )
    interrupted = signal.getsignal(signal.SIGINT)
    with _errors_to(log):
        session = builder.getOrCreate()
    if threading.current_thread() is threading.main_thread():
        # PySpark's own handler asks Java within a call to Java, which fails with traces.
        signal.signal(signal.SIGINT, interrupted)
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _errors_to(log: Path | None) -> Iterator[None]:
    """What is started meanwhile (the JVM and, through it, the Python workers) writes its errors to a file."""
    if log is None:
        yield
        return
    sys.stderr.flush()
    saved = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
