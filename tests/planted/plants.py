"""The planted bugs: which rule each breaks, where, and which tests must see it."""

import ast
import dataclasses
import functools
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from model.doubts import DoubtRules
from model.session import SessionRules
from model.state import Rules as ModelRules
from planted.rules import ROOT, Rule

FOLDER = Path(__file__).resolve().parent
LIST = FOLDER / "list.toml"
MODEL = FOLDER / "model.toml"

LAYERS = {
    "assignors": "pure functions",
    "core": "core in virtual time",
    "conformance": "core in virtual time",
    "client": "client on a scripted server",
    "coordinator": "coordinator",
    "discovery": "discovery",
    "metadata": "metadata on real nodes",
    "runtime": "runtime",
    "integration": "real processes",
    "simulation": "simulator",
    "model": "model",
    "chaos": "chaos",
    "audit": "audit",
    "server": "verify",
}
"""Folder of a test → the layer that it belongs to."""

_KEYS = frozenset({"id", "rules", "bug", "file", "old", "new", "tests", "also"})


@dataclass(frozen=True)
class Check:
    """What may catch a bug besides the named tests: a command that must fail.

    Attributes:
        layer: its layer, one of those of `LAYERS`.
        run: arguments of Python, e.g. `["-m", "simulation", "--seeds", "20"]`.
    """

    layer: str
    run: tuple[str, ...]


@dataclass(frozen=True)
class Plant:
    """One bug.

    Attributes:
        id: its name.
        rules: the rules that it breaks.
        bug: what is wrong with it, in one sentence.
        file: where it goes, from the root of the repository.
        old: what stands there, exactly once.
        new: what replaces it.
        tests: tests that must see it, as pytest names them, from the folder `tests`.
        also: further layers that see it.
    """

    id: str
    rules: tuple[str, ...]
    bug: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    also: tuple[Check, ...] = ()

    @property
    def layer(self) -> str:
        """The layer of its first test."""
        return layer_of(self.tests[0])


@dataclass(frozen=True)
class Listed:
    """A bug of the list in which others found such systems wanting.

    Attributes:
        name: the bug.
        plants: ids of the plants that are it.
        fell_away: why it cannot be made here; empty: it can.
    """

    name: str
    plants: tuple[str, ...] = ()
    fell_away: str = ""


class BadPlants(Exception):
    """A file of plants cannot be used; the message names the file and the plant."""


@dataclass
class Plants:
    """All plants by id, and the lists.

    Attributes:
        plants: the bugs.
        listed: in which others found such systems wanting.
        model: rule of the model of the log → the rules that it stands for.
    """

    plants: dict[str, Plant] = field(default_factory=dict)
    listed: list[Listed] = field(default_factory=list)
    model: dict[str, tuple[str, ...]] = field(default_factory=dict)


def layer_of(test: str) -> str:
    """The layer of a test."""
    return LAYERS[folder_of(test)]


def folder_of(test: str) -> str:
    """The folder of a test, one of `LAYERS`."""
    return test.partition("/")[0]


def is_of(test: str, named: str) -> bool:
    """Whether a test is the one that a plant names, or one of those."""
    return test == named or test.startswith((f"{named}[", f"{named}::"))


def read_plants(folder: Path = FOLDER) -> Plants:
    """Reads all files of a folder.

    Raises:
        BadPlants: one of them makes no sense.
    """
    found = Plants()
    for path in sorted(folder.glob("*.toml")):
        if path.name in (LIST.name, MODEL.name):
            continue
        for table in tomllib.loads(path.read_text("utf-8"))["plant"]:
            name = f"{path.name}: {table.get('id')}"
            unknown, missing = table.keys() - _KEYS, _KEYS - {"also"} - table.keys()
            if unknown or missing:
                raise BadPlants(f"{name}: unknown keys {sorted(unknown)}, missing keys {sorted(missing)}")
            also = tuple(Check(check["layer"], tuple(check["run"])) for check in table.pop("also", ()))
            plant = Plant(
                **{**table, "rules": tuple(table["rules"]), "tests": tuple(table["tests"])}, also=also
            )
            if plant.id in found.plants:
                raise BadPlants(f"{name}: there are two plants of this id")
            if not plant.rules or not plant.tests or plant.old == plant.new:
                raise BadPlants(f"{name}: it needs rules, tests, and a change")
            if any(folder_of(test) not in LAYERS for test in plant.tests):
                raise BadPlants(f"{name}: a test is in none of the folders {', '.join(LAYERS)}")
            found.plants[plant.id] = plant
    path = folder / LIST.name
    if path.exists():
        for table in tomllib.loads(path.read_text("utf-8"))["bug"]:
            found.listed.append(
                Listed(table["name"], tuple(table.get("plants", ())), table.get("fell_away", ""))
            )
    path = folder / MODEL.name
    if path.exists():
        rules = tomllib.loads(path.read_text("utf-8"))["rules"]
        found.model = {name: tuple(ids) for name, ids in rules.items()}
    return found


def planted(plant: Plant, source: str) -> str:
    """A source text with the bug in it.

    Raises:
        BadPlants: the text does not have the place, or has it more than once.
    """
    count = source.count(plant.old)
    if count != 1:
        times = "not" if count == 0 else f"{count} times"
        raise BadPlants(f"{plant.id} is stale: its old text stands {times} in {plant.file}")
    return source.replace(plant.old, plant.new)


def faults(found: Plants, rules: dict[str, Rule], root: Path = ROOT) -> list[str]:
    """What is wrong between plants, rules, code and tests; nothing is run."""
    wrong: list[str] = []
    for plant in found.plants.values():
        wrong += [
            f"{plant.id} names the rule {rule}, which is none" for rule in plant.rules if rule not in rules
        ]
        try:
            planted(plant, (root / plant.file).read_text("utf-8"))
        except BadPlants as error:
            wrong.append(str(error))
        except OSError:
            wrong.append(f"{plant.id} names the file {plant.file}, which is none")
        wrong += [
            f"{plant.id} names the test {test}, which is none"
            for test in plant.tests
            if not _exists(root, test)
        ]
    covered = {rule for plant in found.plants.values() for rule in plant.rules}
    wrong += [f"rule {rule} has no planted bug: {rules[rule].text}" for rule in rules if rule not in covered]
    for bug in found.listed:
        if bool(bug.plants) is bool(bug.fell_away):
            wrong.append(f"the list: {bug.name!r} needs plants or a reason why it fell away")
        wrong += [
            f"the list: {bug.name!r} names {name}, which is no plant"
            for name in bug.plants
            if name not in found.plants
        ]
    if found.model:
        models = (ModelRules, SessionRules, DoubtRules)
        names = {rule.name for rules_of in models for rule in dataclasses.fields(rules_of)}
        wrong += [
            f"the model has the rule {name}, and nothing says what it is"
            for name in names - found.model.keys()
        ]
        wrong += [f"the model has no rule {name}" for name in found.model.keys() - names]
    wrong += [
        f"the rule {name} of the model names {rule}, which is no rule"
        for name, ids in found.model.items()
        for rule in ids
        if rule not in rules
    ]
    return wrong


def _exists(root: Path, test: str) -> bool:
    path, _, name = test.partition("::")
    return not name or name.partition("[")[0] in _functions(root / "tests" / path)


@functools.cache
def _functions(path: Path) -> frozenset[str]:
    if not path.exists():
        return frozenset()
    tree = ast.parse(path.read_text("utf-8"))
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
