"""`muster-audit` where Spark and its companions are not installed: what works, and what the rest says."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kit.logs.log_builder import healthy
from kit.logs.log_nodes import empty, nodes_with
from kit.waiting import until

ABSENT = """
import sys
for name in ("pyspark", "pyarrow", "plotly", "jinja2"):
    sys.modules[name] = None  # as where it is not installed
"""
BARE = f"""{ABSENT}
from muster_audit.__main__ import main
main()
"""
IMPORT_ALL = f"""{ABSENT}
from importlib import import_module
from pathlib import Path
import pytest
tests = Path(sys.argv[1])
sys.path[:0] = [str(tests), str(tests.parent)]
for file in sorted([*tests.rglob("conftest.py"), *tests.rglob("test_*.py")]):
    try:
        import_module(".".join(file.relative_to(tests).with_suffix("").parts))
    except pytest.skip.Exception:
        pass  # it says what it needs
"""


async def audit(*arguments: str, file: Path | None = None) -> tuple[int, str, str]:
    """Exit code and what was said; interrupted once a file is there, if one is named."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BARE, *arguments, stdout=pipe, stderr=pipe
    )
    if file is not None:
        await until(lambda: file.is_file() or process.returncode is not None, f"{file.name} is there")
        process.send_signal(signal.SIGINT)
    said, complained = await process.communicate()
    return process.returncode or 0, said.decode(), complained.decode()


@pytest.mark.cluster
async def test_a_running_cluster_can_be_followed_and_described(tmp_path: Path) -> None:
    async with nodes_with(tmp_path / "nodes", {0: healthy(empty(0, 1))}) as nodes:
        code, said, complained = await audit("describe", nodes.url, "g", "--at", "1", "-o", "json")
        assert (code, json.loads(said)["group_id"], complained) == (1, "g", "")
        checkpoint = tmp_path / "at.json"
        followed = await audit("follow", nodes.url, "--checkpoint", str(checkpoint), file=checkpoint)
        assert followed == (0, "", "")


@pytest.mark.cluster
async def test_what_needs_spark_says_how_to_get_it(tmp_path: Path) -> None:
    for arguments in (("check", "redis://localhost:1"), ("export", "redis://localhost:1", str(tmp_path))):
        code, said, complained = await audit(*arguments)
        assert (code, said) == (2, "")
        assert "pip install 'muster-audit[spark]'" in complained
        assert len(complained.splitlines()) == 1


@pytest.mark.long
def test_all_tests_can_be_collected() -> None:
    """`./x conformance` and `./x test quick` look through all of them, and do without Spark.

    They are imported, as a collection does first: to make ten thousand tests of them takes far longer.
    """
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, str(tests)],
        cwd=tests.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr
