"""An executor of Spark as a pod of its own.

Spark starts the image with the argument `executor` and says the rest in variables; what its own image has a
shell script for is done here, so that ours needs nothing of it.
"""

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from muster_audit.spark.java import find_java_home

_BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_JAVA_OPTION = re.compile(r"SPARK_JAVA_OPT_(\d+)")
_ARGUMENTS = (
    ("--driver-url", "SPARK_DRIVER_URL"),
    ("--executor-id", "SPARK_EXECUTOR_ID"),
    ("--cores", "SPARK_EXECUTOR_CORES"),
    ("--app-id", "SPARK_APPLICATION_ID"),
    ("--hostname", "SPARK_EXECUTOR_POD_IP"),
    ("--resourceProfileId", "SPARK_RESOURCE_PROFILE_ID"),
    ("--podName", "SPARK_EXECUTOR_POD_NAME"),
)


class NotAnExecutor(Exception):
    """Spark did not start this process; the message says which variable is missing."""


def command(environment: Mapping[str, str], java_home: Path, jars: Path) -> list[str]:
    """The JVM to become.

    Args:
        environment: what Spark set for the pod.
        java_home: runtime of Java.
        jars: Spark's own archives.

    Raises:
        NotAnExecutor: a variable is missing.
    """
    for variable in ("SPARK_EXECUTOR_MEMORY", *(variable for _, variable in _ARGUMENTS)):
        if not environment.get(variable):
            raise NotAnExecutor(f"{variable} is not set: only Spark starts executors, see docs/audit.md")
    numbered = {
        int(match[1]): value for name, value in environment.items() if (match := _JAVA_OPTION.fullmatch(name))
    }
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    return [
        str(java_home / "bin" / "java"),
        *(numbered[number] for number in sorted(numbered)),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        f"{jars}/*",
        _BACKEND,
        *(word for option, variable in _ARGUMENTS for word in (option, environment[variable])),
    ]


def become_executor() -> NoReturn:
    """Puts the executor in the place of this process.

    Raises:
        NotAnExecutor: Spark did not start it.
        JavaMissing: there is no Java.
    """
    import pyspark

    shims = Path(tempfile.mkdtemp(prefix="muster-audit-"))
    words = command(os.environ, find_java_home(os.environ, shims), Path(pyspark.__file__).parent / "jars")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.execv(words[0], words)
