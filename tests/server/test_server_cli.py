"""`muster-server` and `muster dev` as a user starts them; what commands answer, in forks (`kit.forked`)."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from kit import forked
from kit.collector import Collector
from kit.interrupted import interrupted
from muster_server.child_process import ChildError, ChildProcess
from muster_server.dev.cluster import ClusterBusyError, DevCluster, Ports
from muster_server.dev.ports import free_ports
from muster_server.dev.redis_nodes import RedisNode
from muster_server.verify.verifier import verify

pytestmark = pytest.mark.cluster

SERVER = [sys.executable, "-m", "muster_server"]
MUSTER = [str(Path(sys.executable).with_name("muster"))]
DEV = [*MUSTER, "dev"]
SECONDS = 60


def environment(**settings: str) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MUSTER_")}
    return {**clean, **settings}


def run(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return forked.run([*SERVER, *arguments], environment(**settings))


def test_version_and_help() -> None:
    for option, shown in (("--version", "muster-server "), ("--help", "--roles")):
        done = subprocess.run(
            [*SERVER, option], env=environment(), capture_output=True, text=True, timeout=SECONDS, check=True
        )
        assert shown in done.stdout


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ([], {}, "--roles is missing"),
        (["--roles", "cordinator"], {}, "there is no role 'cordinator'"),
        (["--roles", "all", "--data", "/dev/null/x"], {}, "the folder /dev/null/x cannot be used"),
        (["--roles", "all", "--nope"], {}, "No such option"),
        (["--roles", "all", "--ready-file", "/none/x"], {}, "--ready-file: there is no folder /none"),
        (["--roles", "discovery", "--data", "x"], {}, "--data is for a process with the role metadata"),
        (
            ["--roles", "coordinator"],
            {"MUSTER_COORDINATOR_LISTN": "x"},
            "did you mean MUSTER_COORDINATOR_LISTEN?",
        ),
        (
            ["--roles", "coordinator"],
            {"MUSTER_COORDINATOR_PORT": "tcp://10.0.0.1:7410"},
            "enableServiceLinks",
        ),
        (["--roles", "coordinator"], {"MUSTER_COORDINATOR_LEASE_MARGIN_MS": "-1"}, "LEASE_MARGIN_MS='-1'"),
    ],
)
def test_mistakes_are_named(arguments: list[str], settings: dict[str, str], message: str) -> None:
    result = run(*arguments, **settings)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


SECRET = "redis://user:secret@a:1"


@pytest.mark.parametrize(
    "command",
    [
        [*MUSTER, "nodes", "list", SECRET],
        [*MUSTER, "nodes", "list", "--output", SECRET],
        [*MUSTER, "nodes", "replace", SECRET, SECRET, SECRET],
        [*MUSTER, "doctor", SECRET],
        [*MUSTER, "features", "list", "--output", SECRET],
        [*MUSTER, "verify", "redis://h:1", "--output", SECRET],
        [*SERVER, SECRET],
        [*SERVER, "--roles", SECRET],
        [*SERVER, "replay", "a", SECRET],
    ],
)
def test_a_password_on_a_wrong_command_line_is_not_repeated(command: list[str]) -> None:
    done = forked.run(command, environment())
    assert done.returncode == 2
    assert "redis://…@" in done.stderr
    assert "secret" not in done.stdout + done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is a disk without room")
@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("muster-server", [*SERVER, "config"]),
        ("muster-server", [*SERVER, "--version"]),
        ("muster", [*MUSTER, "nodes", "--help"]),
    ],
)
def test_output_that_cannot_be_written_is_one_line(name: str, command: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, timeout=SECONDS
        )
    assert done.returncode == 1
    assert done.stderr == f"{name}: it cannot be written: No space left on device\n"


def test_config_shows_what_is_in_force() -> None:
    shown = json.loads(run("config", "--json", MUSTER_GROUP_MAX_SIZE="7").stdout)
    rows = {row["name"]: row for row in shown}
    assert rows["MUSTER_GROUP_MAX_SIZE"]["value"] == "7"
    assert {"MUSTER_METADATA_REDIS_URL", "MUSTER_DISCOVERY_LISTEN", "MUSTER_LOG_LEVEL"} <= rows.keys()


@pytest.mark.parametrize(
    ("command", "module", "argument"),
    [
        ("muster", "muster_server.dev.command", "dev"),
        ("muster", "rich.live", "dev"),
        ("muster", "muster_metadata", "dev"),
        ("muster-server", "muster_server.commands", "config"),
        ("muster-server", "uvloop", "config"),
        ("muster-server", "structlog", "config"),
    ],
)
def test_an_interrupt_while_it_starts_ends_it_without_a_word(
    command: str, module: str, argument: str
) -> None:
    done = interrupted(command, module, argument)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


async def test_init_makes_a_log_once(tmp_path: Path) -> None:
    node = RedisNode(tmp_path / "redis-1")
    await node.start()
    first = run("init", "--redis", node.url, "--shards", "3")
    assert first.returncode == 0, first.stderr
    assert "with 3 shards" in first.stdout
    assert "nothing to do" in run("init", "--redis", node.url, "--shards", "3").stdout
    refused = run("init", "--redis", node.url, "--shards", "4")
    assert refused.returncode == 2
    assert "cannot be changed" in refused.stderr
    assert verify(node.url).logs == 4
    await node.stop()


@pytest.mark.parametrize(
    ("role", "foreign"),
    [
        ("metadata", ("muster_coordinator.coordinator", "muster_discovery.role")),
        ("discovery", ("muster_coordinator.coordinator", "muster_metadata.server", "redis")),
        ("coordinator", ("muster_discovery.role", "muster_metadata.server", "redis")),
    ],
)
def test_a_process_loads_only_what_it_runs(role: str, foreign: tuple[str, ...]) -> None:
    """Also of libraries: those of tokens, and what draws tracebacks, are a quarter of the time of a start."""
    foreign += ("cryptography.x509", "jwt", "opentelemetry.exporter", "prometheus_client", "pygments", "rich")
    program = f"""
import sys
from muster_server.cli import main

try:
    main()
except SystemExit:
    from muster_server.roles import Composition

    Composition([{role!r}])
print([name for name in {foreign!r} if name in sys.modules])
"""
    answer = subprocess.run(
        [sys.executable, "-c", program, "--version"],
        env=environment(MUSTER_COORDINATOR_NODE_ID="c-1"),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (answer.stdout.splitlines()[1:], answer.stderr) == (["[]"], "")


def test_what_a_process_has_loaded_is_not_looked_at_by_the_garbage_collector() -> None:
    """LIM-18: else the first full collection while it serves does, for 36 ms."""
    program = """
import asyncio, gc
from muster_server.roles import Composition
from muster_discovery import role

async def start(self, name):
    print(any(found is role.__dict__ for found in gc.get_objects()))
    raise SystemExit

Composition._start = start
asyncio.run(Composition(["discovery"]).run(asyncio.Event()))
"""
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert answer.stdout.splitlines()[-1:] == ["False"], answer.stderr


def test_all_roles_in_one_process_on_an_embedded_server(tmp_path: Path) -> None:
    discovery, coordinator, metadata = free_ports(3)
    ready = tmp_path / "ready"
    process = subprocess.Popen(
        [*SERVER, "--roles", "all", "--data", str(tmp_path / "data"), "--ready-file", str(ready)],
        env=environment(
            MUSTER_DISCOVERY_LISTEN=f"127.0.0.1:{discovery}",
            MUSTER_COORDINATOR_LISTEN=f"127.0.0.1:{coordinator}",
            MUSTER_METADATA_LISTEN=f"127.0.0.1:{metadata}",
        ),
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        _wait(ready.exists, process)
        assert json.loads(ready.read_text()) == {
            "discovery": discovery,
            "coordinator": coordinator,
            "metadata": metadata,
        }
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


def _wait(ready: object, process: subprocess.Popen[str]) -> None:
    assert callable(ready)
    deadline = time.monotonic() + SECONDS
    while not ready():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_dev_starts_stops_and_is_alone_on_its_folder(tmp_path: Path) -> None:
    arguments = [*DEV, "--data", str(tmp_path), "--ports", "free", "--coordinators", "2"]
    process = subprocess.Popen(arguments, env=environment(), stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("ready after"):
                break
        assert "clients connect to" in lines[0], "the address comes first"
        again = subprocess.run(
            arguments, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert again.returncode == 1
        assert "runs on" in again.stderr
        assert "already" in again.stderr
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=SECONDS)[0]
    assert process.returncode == 0, rest
    assert "the state is kept" in rest
    described = json.loads((tmp_path / "cluster.json").read_text())
    assert (tmp_path / "cluster.json").stat().st_mode & 0o777 == 0o600
    host, _, port = described["servers"].partition(":")
    with pytest.raises(OSError), socket.create_connection((host, int(port)), 1):
        pass


def test_dev_stops_at_once_when_it_is_interrupted_again(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*DEV, "--data", str(tmp_path), "--ports", "free", "--coordinators", "1"],
        env=environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        next(line for line in process.stdout if line.rstrip().endswith("live, 50 shards"))
        # The coordinator cannot hand its shards over while the log stands still.
        os.kill(_child(process.pid, "valkey-server"), signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        next(line for line in process.stdout if line.startswith("stopping"))
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=SECONDS)[0]
    assert process.returncode == 0
    assert "no longer waiting for the processes" in rest
    assert "the state is kept" in rest


def test_dev_gives_each_process_a_port_for_its_metrics_and_passes_other_telemetry_on(tmp_path: Path) -> None:
    with Collector() as collector:
        told = environment(
            MUSTER_TELEMETRY_PROMETHEUS_LISTEN="127.0.0.1:1",
            MUSTER_TELEMETRY_OTLP_ENDPOINT=collector.endpoint,
            MUSTER_TELEMETRY_OTLP_INTERVAL_MS="100",
        )
        process = subprocess.Popen(
            [*DEV, "--data", str(tmp_path), "--ports", "free", "--coordinators", "2", "--metrics"],
            env=told, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with process:
            assert process.stdout is not None
            urls: dict[str, str] = {}
            for line in process.stdout:
                assert "is left out" not in line
                if found := re.match(r" *metrics of ([a-z0-9-]+): (http://\S+)$", line):
                    urls[found[1]] = found[2]
                if line.startswith("ready after"):
                    break
            assert list(urls) == ["metadata-1", "discovery-1", "coordinator-1", "coordinator-2"]
            for name, url in urls.items():
                with urllib.request.urlopen(url, timeout=SECONDS) as answer:
                    assert f'roles="{name.partition("-")[0]}"' in answer.read().decode()
            _wait(lambda: len(collector.instances) == len(urls), process)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=SECONDS)
    assert process.returncode == 0


def test_dev_says_that_one_address_for_metrics_does_not_do(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*DEV, "--data", str(tmp_path), "--ports", "free", "--coordinators", "1"],
        env=environment(MUSTER_TELEMETRY_PROMETHEUS_LISTEN="127.0.0.1:1"),
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        told = list(iter(process.stdout.readline, "starting …\n"))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
    assert any(line.startswith("MUSTER_TELEMETRY_PROMETHEUS_LISTEN is left out") for line in told)
    assert any("--metrics" in line for line in told)


def test_dev_passes_rights_on_and_says_that_it_may_not_look(tmp_path: Path) -> None:
    rules = tmp_path / "access.toml"
    rules.write_text('[[rule]]\nwho = ["*"]\nverbs = ["join"]\ngroups = ["*"]\n')
    process = subprocess.Popen(
        [*DEV, "--data", str(tmp_path / "data"), "--ports", "free", "--coordinators", "1"],
        env=environment(MUSTER_ACCESS_FILE=str(rules)), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        told: list[str] = []
        for line in process.stdout:
            told.append(line)
            if line.startswith("the cluster cannot be shown"):
                break
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
    assert "  settings            MUSTER_ACCESS_FILE\n" in told
    assert "PERMISSION_DENIED: no rule allows the caller `describe` of the cluster" in told[-1]


def test_dev_refuses_a_setting_that_nobody_knows(tmp_path: Path) -> None:
    result = subprocess.run(
        [*DEV, "--data", str(tmp_path), "--ports", "free"],
        env=environment(MUSTER_ACCES_FILE="x"),
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert "MUSTER_ACCES_FILE: there is no such setting; did you mean MUSTER_ACCESS_FILE?" in result.stderr


def test_dev_names_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = subprocess.run(
        [*DEV, "--data", str(tmp_path / "file"), "--ports", "free"],
        env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert "cannot be used" in result.stderr
    assert "--data" in result.stderr
    assert "Traceback" not in result.stderr


def test_dev_says_which_process_was_ended_and_that_nobody_answers(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*DEV, "--data", str(tmp_path), "--ports", "free", "--coordinators", "1"],
        env=environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("coordinator-1"):
                break
        os.kill(_child(process.pid, "--roles discovery"), signal.SIGKILL)
        awaited = {"discovery-1 was ended by SIGKILL", "the cluster does not answer"}
        for line in process.stdout:
            awaited = {text for text in awaited if not line.startswith(text)}
            if not awaited:
                break
        assert not awaited
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
    assert process.returncode == 0


def _child(parent: int, program: str) -> int:
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    )
    for line in listed.stdout.splitlines():
        pid, ppid, arguments = line.split(maxsplit=2)
        if int(ppid) == parent and program in arguments:
            return int(pid)
    raise AssertionError(f"no {program} below {parent}")


async def test_a_failed_start_shows_only_what_that_run_logged(tmp_path: Path) -> None:
    for mistake in ("first mistake", "second mistake"):
        script = f"import sys; sys.exit({mistake!r})"
        child = ChildProcess("child", [sys.executable, "-c", script], tmp_path / "child.log")
        child.start()
        with pytest.raises(ChildError, match=mistake) as error:
            await child.wait_until(lambda: False, SECONDS)
    assert "first mistake" not in str(error.value)


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cluster = DevCluster(tmp_path, ports=Ports(discovery=port))
        with pytest.raises(ClusterBusyError, match=rf"port {port} \(for discovery-1\) is in use"):
            cluster.check_ports()
