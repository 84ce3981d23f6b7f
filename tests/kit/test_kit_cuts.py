"""That what is cut small is there, is cut wherever it is read, and changes what lives do."""

import ast
import gc
import importlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

import muster_core
import pytest
from kit.lives import conversion_fuzz, core_fuzz, incremental_fuzz, shard_fuzz
from kit.lives.cuts import CORE, CUTS, Cut, small_cuts

_FOLDER = Path(muster_core.__file__).parent
_SEEDS = 40


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_a_cut_is_of_a_number_wherever_it_is_read(cut: Cut) -> None:
    sets, *imports = cut.modules
    assert isinstance(getattr(importlib.import_module(f"{CORE}.{sets}"), cut.name), int)
    assert cut.shortest <= getattr(importlib.import_module(f"{CORE}.{sets}"), cut.name)
    assert sorted(imports) == sorted(name for name, found in _imported() if found == (sets, cut.name))


def test_a_constant_is_cut_once() -> None:
    assert len(set(map(str, CUTS))) == len(CUTS)


def test_a_step_has_its_length_again_after_a_life() -> None:
    modules = [importlib.import_module(f"{CORE}.{name}") for cut in CUTS for name in cut.modules]
    names = [cut.name for cut in CUTS for _ in cut.modules]
    before = list(map(getattr, modules, names))
    with small_cuts(1):
        assert all(map(int.__lt__, map(getattr, modules, names), before))
    with small_cuts(None):
        assert list(map(getattr, modules, names)) == before


@pytest.mark.long
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_lives_do_something_else_with_a_cut_than_without(cut: Cut) -> None:
    others = tuple(one for one in CUTS if one is not cut)
    everywhere = ((play, seed) for seed in range(_SEEDS) for play in PLAYS)
    assert any(_calls(play, seed, CUTS) != _calls(play, seed, others) for play, seed in everywhere)


@pytest.mark.slow
def test_a_life_does_the_same_again() -> None:
    for play in PLAYS:
        assert _calls(play, 0, CUTS) == _calls.__wrapped__(play, 0, CUTS)


def _group_life(seed: int) -> None:
    assert core_fuzz.failure_of(core_fuzz.drawn(seed)) is None


PLAYS: tuple[Callable[[int], object], ...] = (
    shard_fuzz.life,
    _group_life,
    conversion_fuzz.life,
    incremental_fuzz.life,
)


@cache
def _calls(play: Callable[[int], object], seed: int, cuts: tuple[Cut, ...]) -> Counter[CodeType]:
    """How often a life calls each function of the core, or goes on with a generator."""
    calls: Counter[CodeType] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        calls[frame.f_code] += 1

    _forget_what_is_cached()
    gc.collect()
    before = sys.gettrace()
    with small_cuts(seed, cuts):
        gc.disable()  # it ends generators that nobody goes on with, which is a call
        sys.settrace(count)
        try:
            play(seed)
        finally:
            sys.settrace(before)
            gc.enable()
    return Counter({code: calls[code] for code in calls if _FOLDER in Path(code.co_filename).parents})


def _forget_what_is_cached() -> None:
    for name, module in list(sys.modules.items()):
        for one in vars(module).values() if name.startswith(f"{CORE}.") else ():
            if hasattr(one, "cache_clear"):
                one.cache_clear()


@cache
def _imported() -> Iterable[tuple[str, tuple[str, str]]]:
    """What modules of the core import from others of it: the module, and where which name is from."""
    return list(_imports())


def _imports() -> Iterator[tuple[str, tuple[str, str]]]:
    for file in sorted(_FOLDER.rglob("*.py")):
        module = ".".join(file.relative_to(_FOLDER).with_suffix("").parts)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{CORE}."):
                for alias in node.names:
                    yield module, ((node.module or "").removeprefix(f"{CORE}."), alias.name)
