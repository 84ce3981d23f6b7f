"""The tests of docs/testing.md and of examples/test_workers.py, as their readers run them."""

import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "testing.md"
EXAMPLES = ROOT / "examples"

Test = Callable[[], Any]


def _tests_of(names: dict[str, Any]) -> dict[str, Test]:
    found = {name: value for name, value in names.items() if name.startswith("test_")}
    assert found, "a block, or a file, without a test"
    return found


def _of_the_page() -> dict[str, Test]:
    found: dict[str, Test] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        names: dict[str, Any] = {}
        exec(compile(block, str(PAGE), "exec"), names)
        found |= _tests_of(names)
    return found


def _of_the_examples() -> dict[str, Test]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        return _tests_of(vars(importlib.import_module("test_workers")))


@pytest.mark.slow
@pytest.mark.parametrize("test", [pytest.param(t, id=n) for n, t in _of_the_page().items()])
async def test_of_the_page(test: Test) -> None:
    result = test()
    if inspect.isawaitable(result):
        await result


@pytest.mark.slow
@pytest.mark.parametrize("test", [pytest.param(t, id=n) for n, t in _of_the_examples().items()])
async def test_of_the_examples(test: Test) -> None:
    result = test()
    if inspect.isawaitable(result):
        await result
