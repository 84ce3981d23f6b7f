"""What holds for all tests: their markers, what they share where many processes run them, and the logs."""

import gc
import logging
import os
import re
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from kit import java_classes, leases
from kit.machine import CORES, WAITING, ports_of
from kit.quick import Quickness
from kit.waiting import what_tasks_wait_for

REAL = ("cluster", "containers", "long", "spark")
"""Markers of tests that may start a server, or wait for a clock."""

NOT_QUICK = (*REAL, "slow")
"""Markers of tests that `quick` leaves out."""

_NEVER_QUICK = re.compile(rf"^pytestmark = .*pytest\.mark\.({'|'.join(NOT_QUICK)})\b", re.MULTILINE)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One process for each core that computes, and others for tests that wait: one where all are quick."""
    return CORES + (1 if _only_quick(config) else WAITING)


def _only_quick(config: pytest.Config) -> bool:
    return bool(config.option.markexpr == "quick")


def pytest_configure(config: pytest.Config) -> None:
    """Gives each process of the tests ports of its own; servers that its tests start inherit them."""
    hypothesis.settings.register_profile("untimed", deadline=None)  # no test asserts a speed
    hypothesis.settings.load_profile("untimed")
    os.environ.setdefault("JAVA_TOOL_OPTIONS", java_classes.options())
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        number = int(worker["workerid"].removeprefix("gw"))
        os.environ["MUSTER_DEV_PORTS"] = ports_of(number, worker["workercount"])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Passes over a file of which no test is quick, where only those run: each process would import it."""
    if collection_path.suffix != ".py" or not _only_quick(config):
        return None
    text = collection_path.read_text("utf-8")
    return True if _NEVER_QUICK.search(text) and "pytest.mark.quick" not in text else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays: nobody looks for garbage among it, now or while the tests run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what is quick, says what may run again, and, for many processes, what one of them runs alone."""
    reruns = config.getoption("reruns", None)
    for item in items:
        names = {mark.name for mark in item.iter_markers()}
        if names.isdisjoint(NOT_QUICK):
            item.add_marker("quick")
        if reruns and "cluster" not in names:
            item.add_marker(pytest.mark.flaky(reruns=0))
    if hasattr(config, "workerinput"):
        _share(items)


def _share(items: list[pytest.Item]) -> None:
    """Groups tests, and puts first what takes longest.

    A group is run by one process, in order. Tests that compute for long are in as many groups as there are
    cores, so that those that wait beside them find time when what they wait for comes: those with Spark in
    the first, whole files in each of the others. Each file of quick tests is a group, and these come last:
    they fill what is left where others end early.
    """
    groups = [f"computing-{number}" for number in range(1, CORES + 1)]
    others = cycle(groups[1:] or groups)
    group_of: dict[Path, str] = {}
    for item in items:
        names = {mark.name for mark in item.iter_markers()}
        if "brief_lease" in names:
            group = "brief-lease"
        elif "cluster" in names:
            continue
        elif "spark" in names:
            group = groups[0]
        elif "long" in names:
            if item.path not in group_of:
                group_of[item.path] = next(others)
            group = group_of[item.path]
        else:
            group = str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    order = (("spark", 0), ("long", 1), ("brief_lease", 2), ("cluster", 3))
    names = {mark.name for mark in item.iter_markers()}
    place = next((place for name, place in order if name in names), 5)
    return 4 if place == 3 and item.path.parent.name not in ("chaos", "integration") else place


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Gives a second run of a test a time limit of its own: pytest-timeout sets one before the first."""
    if getattr(item, "execution_count", 1) > 1:
        plugin: Any = item.config.pluginmanager.get_plugin("timeout")
        settings = plugin._get_item_settings(item)
        item.config.hook.pytest_timeout_cancel_timer(item=item)
        item.config.hook.pytest_timeout_set_timer(item=item, settings=settings)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Names a test as the command line takes it, where pytest-xdist added the name of its group."""
    if hasattr(report, "node") and report.nodeid.rfind("@") > report.nodeid.rfind("]"):
        report.nodeid = report.nodeid.rpartition("@")[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows where the tasks of a test stood whose time was over."""
    report = yield
    if call.excinfo is not None and "from pytest-timeout" in str(call.excinfo.value):
        report.sections.append(("what its tasks wait for", what_tasks_wait_for()))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Shows the first failure, whole, of each test that passed when it ran once more."""
    failed = {report.nodeid for report in terminalreporter.stats.get("failed", ())}
    for report in terminalreporter.stats.get("rerun", ()):
        if report.nodeid in failed:
            continue
        terminalreporter.write_sep("=", f"UNSTEADY {report.nodeid}", yellow=True)
        terminalreporter.write_line(report.longreprtext)
        for title, text in report.sections:
            terminalreporter.write_sep("-", title)
            terminalreporter.write_line(text)


@pytest.fixture(scope="session", autouse=True)
def _servers_are_forked() -> Iterator[None]:
    """Servers that tests start are forks of a process that has imported them."""
    if find_spec("muster_server") is None:  # the client's tests also run without the servers
        yield
        return
    from kit.clusters import forked_servers
    from muster_server import child_process

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child_process, "launch", forked_servers.launch)
        yield


@pytest.fixture(scope="session", autouse=True)
def _leases_last() -> Iterator[None]:
    """Leases of servers that tests start do not lapse for a busy machine."""
    with leases.lasting():
        yield


@pytest.fixture(autouse=True)
def _leases_are_brief_where_a_test_says_so(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests of the end of a lease, which have the marker `brief_lease`, do not wait long for it."""
    with leases.lasting(0) if request.node.get_closest_marker("brief_lease") else nullcontext():
        yield


@pytest.fixture(autouse=True)
def _quick_is_quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a quick test that starts a server, waits for a clock, or computes for long."""
    if any(request.node.get_closest_marker(name) for name in REAL):
        yield
        return
    quickness = Quickness()
    quickness.watch(monkeypatch)
    yield
    if quickness.faults:
        pytest.fail(f"it {quickness.faults[0]}, as no quick test does: mark it `cluster`", pytrace=False)
    if quickness.is_slow and not request.node.get_closest_marker("slow"):
        pytest.fail(f"it computes for {quickness.computed_s:.1f} s: mark it `slow`", pytrace=False)


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """A command that runs within a test sets up the logs of the process: for that test alone."""
    if find_spec("structlog") is None:  # the client's tests also run without the servers
        yield
        return
    import structlog

    root = logging.getLogger()
    handlers, level, configured = root.handlers[:], root.level, structlog.is_configured()
    before = structlog.get_config()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    if configured:
        structlog.configure(**before)
    else:
        structlog.reset_defaults()
