"""The command line itself: output, errors, start, end; `piped` and `interrupted` start it as a user does."""

import asyncio
import os
import subprocess
import sys
from importlib.metadata import EntryPoint, version
from pathlib import Path

import muster
import pytest
from client.client_cli import cli
from client.client_scripted import NONE, ScriptedCluster
from kit import forked
from kit.interrupted import interrupted
from muster._cluster.quota_calls import ProcessQuotas
from muster.cli import _app, _quotas
from muster_protos.muster.v1 import common_pb2, coordinator_pb2, quotas_pb2

pytestmark = pytest.mark.cluster
FULL_DISK = Path("/dev/full")


async def test_in_a_pipe_each_row_is_one_line(cluster: ScriptedCluster) -> None:
    name = "a" * 249
    await cli(cluster, "topics", "create", name, "12")
    _, out, _ = await cli(cluster, "topics", "list")
    assert [line.split() for line in out.splitlines()][1:] == [[name, "12"], ["t", "3"]]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("topics", "create", "t", "5"),
            "topic 't' exists already, with 3 partitions; use it, or another name",
        ),
        (("topics", "create", "a b", "5"), "topic: 'a b': must be 1 to 249 letters"),
        (("topics", "delete", "nothing"), "there is no topic 'nothing'"),
        (("groups", "history", "nobody"), "group 'nobody': GROUP_ID_NOT_FOUND"),
    ],
)
async def test_an_error_is_one_line(
    cluster: ScriptedCluster, arguments: tuple[str, ...], sentence: str
) -> None:
    code, out, err = await cli(cluster, *arguments)
    assert (code, out) == (1, "")
    assert err.startswith(f"muster: {sentence}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", [("groups", "describe"), ("offsets",), ("groups", "list", "--servers")])
def test_an_argument_that_is_no_text_is_named(command: tuple[str, ...]) -> None:
    done = forked.run(["muster", *command, "a\udcff"])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "muster: the argument 'a\\udcff' is not UTF-8\n"


async def piped(scripted: ScriptedCluster, arguments: str, into: str) -> tuple[int | None, str]:
    """Exit code and standard error of a command whose output goes somewhere else."""
    process = await asyncio.create_subprocess_shell(
        f"{sys.executable} -c 'from muster.cli import main; main()' {arguments} {into}",
        env={**os.environ, "MUSTER_SERVERS": scripted.address},
        stderr=asyncio.subprocess.PIPE,
    )
    _, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, err.decode()


@pytest.mark.skipif(not FULL_DISK.exists(), reason="/dev/full is a disk without room")
@pytest.mark.parametrize("arguments", ["groups list", "topics list --output json", "--version"])
async def test_output_that_cannot_be_written_is_one_line(cluster: ScriptedCluster, arguments: str) -> None:
    code, err = await piped(cluster, arguments, f"> {FULL_DISK}")
    assert (code, err) == (1, "muster: it cannot be written: No space left on device\n")


async def test_who_reads_no_further_ends_it_without_a_word(cluster: ScriptedCluster) -> None:
    assert await piped(cluster, "groups list", "| true") == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["groups", "list", "redis://user:se@cret@a:1,b:2"],
        ["redis://user:secret@a:1"],
        ["groups", "redis://user:secret@a:1"],
    ],
)
async def test_a_password_on_a_wrong_command_line_is_not_repeated(arguments: list[str]) -> None:
    code, out, err = await cli(None, *arguments)
    assert (code, out) == (2, "")
    assert "redis://…@" in err
    assert "cret" not in err


async def test_the_library_names_a_group_id_that_is_no_text(cluster: ScriptedCluster) -> None:
    async with muster.Cluster(cluster.address) as connection:
        for question in (connection.committed, connection.describe_group, connection.delete_group):
            with pytest.raises(muster.SettingsError, match="no text that UTF-8 can hold"):
                await question("a\udcff")


async def test_it_says_its_version() -> None:
    assert await cli(None, "--version") == (0, f"muster {version('muster-client')}\n", "")


async def test_nobody_there_is_one_line() -> None:
    code, _, err = await cli(None, "cluster")
    assert code == 1
    assert err.count("\n") == 1
    assert "no server of 127.0.0.1:1 answered" in err
    assert "Connection refused" in err


async def test_offsets_and_history_and_cluster(cluster: ScriptedCluster) -> None:
    a = cluster.coordinators[0]
    entry = coordinator_pb2.OffsetFetchResponse.Partition(partition=2, offset=17, metadata="[bold]")
    topic = coordinator_pb2.OffsetFetchResponse.Topic(name="t", partitions=[entry])
    fetched = coordinator_pb2.OffsetFetchResponse(
        groups=[coordinator_pb2.OffsetFetchResponse.Group(group_id="g", topics=[topic])]
    )
    a.script["OffsetFetch"].append(fetched)
    code, out, _ = await cli(cluster, "offsets", "g")
    assert (code, out.splitlines()[1].split()) == (0, ["t", "2", "17", "[bold]"])

    generation = coordinator_pb2.GroupHistoryResponse.Generation(
        generation=3, started_at_ms=86_400_000, cause=common_pb2.RebalanceCause(sentence="It was new.")
    )
    a.script["GroupHistory"].append(
        coordinator_pb2.GroupHistoryResponse(error_code=NONE, generations=[generation])
    )
    code, out, _ = await cli(cluster, "groups", "history", "g")
    assert out.splitlines()[1].split() == ["3", "1970-01-02", "00:00:00", "0", "0", "It", "was", "new."]

    code, out, _ = await cli(cluster, "cluster", "--servers", cluster.address)
    assert out.splitlines()[3].split()[0::2] == ["a", "live"]


@pytest.mark.parametrize("asked", [(), ("--help",), ("redis://a", "--deep")])
def test_a_command_that_cannot_be_loaded_says_why(
    asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = EntryPoint("broken", "muster_of_nobody.command:run", _app.PLUGINS)
    monkeypatch.setattr(_app, "entry_points", lambda group: [broken])
    with pytest.raises(SystemExit) as end:
        _app.build(["broken", *asked])(["broken", *asked])
    assert end.value.code == (
        "muster: the command 'broken' cannot be loaded: "
        "ModuleNotFoundError: No module named 'muster_of_nobody'"
    )


def test_without_its_packages_it_says_how_to_get_them() -> None:
    script = "import sys; sys.modules['typer'] = None\nfrom muster.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "muster: the command line needs two more packages: pip install 'muster-client[cli]'\n"
    )


def test_importing_the_client_imports_no_command_line_and_no_server() -> None:
    script = (
        "import sys, logging, signal; before = signal.getsignal(signal.SIGINT); from muster import *\n"
        "assert signal.getsignal(signal.SIGINT) is before and not logging.getLogger().handlers\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('typer', 'rich', 'click', 'structlog')"
        " or m.startswith('muster_') and not m.startswith(('muster_protos', 'muster_assignors'))])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "module",
    ["muster.cli._app", "typer", "grpc", "google.protobuf", "muster._cluster.cluster", "muster.cli._topics"],
)
def test_an_interrupt_while_it_starts_ends_it_without_a_word(module: str) -> None:
    done = interrupted("muster", module, "groups", "list")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


async def test_what_others_wrote_does_nothing_to_the_terminal(cluster: ScriptedCluster) -> None:
    evil = "\x1b]0;title\x07\x1b[2J\nforged \x9b31m\u202e\u200b"
    shown = "\\x1b]0;title\\x07\\x1b[2J\\nforged \\x9b31m\\u202e\\u200b"
    member = coordinator_pb2.DescribeGroupsResponse.Member(member_id=evil, host=evil)
    group = coordinator_pb2.DescribeGroupsResponse.Group(
        group_id="g", state=coordinator_pb2.GROUP_STATE_STABLE, leader=evil, members=[member]
    )
    group.cause.sentence = evil
    a = cluster.coordinators[0]
    a.script["DescribeGroups"].append(coordinator_pb2.DescribeGroupsResponse(groups=[group]))
    code, out, _ = await cli(cluster, "groups", "describe", "g")
    assert (code, out.count(shown)) == (0, 4)
    assert all(line.isprintable() for line in out.splitlines())
    partition = coordinator_pb2.OffsetFetchResponse.Partition(offset=1, metadata=evil)
    topic = coordinator_pb2.OffsetFetchResponse.Topic(name=evil, partitions=[partition])
    fetched = coordinator_pb2.OffsetFetchResponse(
        groups=[coordinator_pb2.OffsetFetchResponse.Group(group_id="g", topics=[topic])]
    )
    a.script["OffsetFetch"].append(fetched)
    code, out, _ = await cli(cluster, "offsets", "g")
    assert (code, out.count(shown)) == (0, 2)
    a.script["GroupHistory"].append(
        coordinator_pb2.GroupHistoryResponse(
            error_code=common_pb2.ERROR_CODE_INVALID_REQUEST, error_message=evil
        )
    )
    code, _, err = await cli(cluster, "groups", "history", "g")
    assert (code, err.count("\n")) == (1, 1)
    assert "\x1b" not in err


def test_quotas_show_when_a_caller_was_refused_beside_what_it_was_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside each quota it looked as if all of them had been used up."""
    kind = quotas_pb2.DescribeQuotasResponse
    uses = [kind.Use(quota="streams", used=3), kind.Use(quota="calls_per_s", used=9, refused=2)]
    caller = kind.Caller(name="10.0.0.9", refused_ago_ms=7_000, uses=uses)
    process = ProcessQuotas("10.0.0.1:7410", kind(callers=[caller]), "")
    monkeypatch.setattr(_quotas, "ask", lambda *_: [process])
    _quotas.quotas()
    shown = [line.split() for line in capsys.readouterr().out.splitlines() if "10.0.0.9" in line]
    assert [line[2:] for line in shown] == [
        ["streams", "-", "3", "0", "-"],
        ["calls_per_s", "-", "9", "2", "7", "s", "ago"],
    ]
