"""Runs the tests against changes of muster_core: one forked process for each."""

import ast
import os
import resource
import select
import signal
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mutation.changes import Change, changed

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "services/core/muster_core"
_LONG = ("test_conformance_traces.py", "test_conformance_properties.py", "test_conformance_snapshots.py")
_NO_RULES = "test_conformance_command.py"
_BUDGET_S = 6.0  # CPU seconds of tests for one change; those that remain are the slowest
_MEMORY_BYTES = 4 << 30
_OUTCOMES = {0: "survived", 1: "failed"}


def run(todo: list[Change], jobs: int, quick: bool, note: Callable[[Change, str], None]) -> bool:
    """Tries the changes; returns whether it came to that.

    Args:
        todo: the changes.
        jobs: processes.
        quick: leaves the recorded scripts and the random lives out.
        note: told of each outcome.
    """
    tests = [str(ROOT / "tests" / folder) for folder in ("core", "conformance")]
    ignored = [f"--ignore={ROOT}/tests/conformance/{name}" for name in (_NO_RULES, *(_LONG if quick else ()))]
    runner = _Runner(todo, jobs, note)
    pytest.main(["-q", "--tb=no", f"--rootdir={ROOT}", *tests, *ignored], plugins=[runner])
    return runner.done


class _Runner:
    """Takes the place of pytest's loop: all tests once, then each change against those that reach it."""

    def __init__(self, todo: list[Change], jobs: int, note: Callable[[Change, str], None]) -> None:
        self._todo, self._jobs, self._note = todo, jobs, note
        self._reach: dict[tuple[str, str], list[Any]] = {}
        self._spent: dict[Any, float] = {}
        self._rank: dict[Any, float] = {}
        self._failed = False
        self._session: pytest.Session
        self.done = False

    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings

        settings.register_profile("mutation", phases=[Phase.explicit, Phase.generate])  # a failure is enough
        settings.load_profile("mutation")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._session = session
        for item in session.items:
            self._watch(item)
        print(f"\n{len(session.items)} tests; trying {len(self._todo)} changes", flush=True)
        self._try_all()
        self.done = True
        return True

    def _watch(self, item: pytest.Item) -> None:
        """Runs a test and notes which functions of the package it comes to."""
        seen: set[types.CodeType] = set()

        def profile(frame: types.FrameType, event: str, _: object) -> None:
            if event == "call":
                seen.add(frame.f_code)

        started = time.process_time()
        sys.setprofile(profile)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        sys.setprofile(None)
        spent = time.process_time() - started
        if self._failed:
            self._failed = False
            print(f"\nleft out, as it fails without any change: {item.nodeid}", flush=True)
            return
        reached = {
            (Path(code.co_filename).name, _outer(code.co_qualname))
            for code in seen
            if code.co_filename.startswith(str(PACKAGE))
        }
        self._spent[item], self._rank[item] = spent, spent * len(reached)  # quick ones and narrow ones first
        for function in reached:
            self._reach.setdefault(function, []).append(item)

    def _try_all(self) -> None:
        running: dict[int, tuple[int, Change]] = {}
        waiting, count, began = list(reversed(self._todo)), 0, time.monotonic()
        while waiting or running:
            while waiting and len(running) < self._jobs:
                change = waiting.pop()
                child = os.fork()
                if child == 0:
                    self._try(change)
                running[os.pidfd_open(child)] = (child, change)
            for pidfd in select.select(list(running), [], [])[0]:
                child, change = running.pop(pidfd)
                os.close(pidfd)
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                outcome = _OUTCOMES.get(status, "time-out" if status == -signal.SIGXCPU else "failed")
                self._note(change, outcome)
                count += 1
                if outcome == "survived" or count % 50 == 0:
                    spent = time.monotonic() - began
                    where = f"{change.file}:{change.line} {outcome}"
                    print(f"{count} of {len(self._todo)}, {spent:.0f} s: {where}", flush=True)

    def _try(self, change: Change) -> None:
        """In a process of its own: swaps the change in, runs what reaches it, ends with the outcome."""
        self._session.config.pluginmanager.unregister(name="terminalreporter")
        limit_s = int(_BUDGET_S + 4)  # so long only when a change makes a loop endless
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        try:
            path = file_of(change.file)
            names = swap(path, changed(path, change))
        except Exception:
            os._exit(1)  # a file that cannot be loaded is noticed by whoever imports it
        tests: set[Any] = set()
        for name in names:
            for (file, function), reaching in self._reach.items():
                if file == change.file and name in (function, None):
                    tests.update(reaching)
        left_s = _BUDGET_S
        for item in sorted(tests, key=self._rank.__getitem__):
            left_s -= self._spent[item]
            if left_s < 0:
                break
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if self._failed:
                os._exit(1)
        os._exit(0)


def file_of(name: str) -> Path:
    """The file of the core of a name: no two rooms have files of the same one."""
    (path,) = PACKAGE.rglob(name)
    return path


def _outer(qualname: str) -> str:
    return qualname.partition(".<locals>")[0]


def swap(path: Path, source: str) -> set[str | None]:
    """Puts the functions and constants of a changed source into the loaded module.

    Returns:
        The functions that are other than before; None stands for a constant of the module.
    """
    module = sys.modules[".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)]
    before, after = ast.parse(path.read_text(encoding="utf-8")), ast.parse(source)
    names: set[str | None] = set()
    for old, new in zip(before.body, after.body, strict=True):
        if ast.dump(old) == ast.dump(new):
            continue
        if isinstance(new, ast.ClassDef | ast.FunctionDef):
            code = compile(ast.Module([new], []), str(path), "exec")
            _swap_code(module, "", code, names)
        else:
            exec(compile(ast.Module([new], []), str(path), "exec"), module.__dict__)
            names.add(None)
    return names


def _swap_code(module: types.ModuleType, prefix: str, code: types.CodeType, names: set[str | None]) -> None:
    for constant in code.co_consts:
        if not isinstance(constant, types.CodeType):
            continue
        function = _function(module, constant.co_qualname)
        if function is None:
            if constant.co_qualname in vars(module):  # a class
                _swap_code(module, constant.co_qualname, constant, names)
        elif function.__code__ != constant:
            function.__code__ = constant
            names.add(constant.co_qualname)


def _function(module: types.ModuleType, qualname: str) -> types.FunctionType | None:
    owner, _, name = qualname.rpartition(".")
    place = vars(vars(module)[owner]) if owner else vars(module)
    found: Any = place.get(name)
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, staticmethod | classmethod):
        found = found.__func__
    return found if isinstance(found, types.FunctionType) else None
