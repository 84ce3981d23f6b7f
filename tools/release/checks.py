"""What must hold before something is released; each check returns what is wrong, in words."""

import hashlib
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

DISTRIBUTIONS = ("protos", "assignors", "clients/python", "services", "services/audit")
"""Their folders, in the order in which they can be published: each needs only those before it."""

LOCKED = {
    "requirements-server.lock": ("services/pyproject.toml", ()),
    "requirements-audit.lock": ("services/audit/pyproject.toml", ("spark", "iceberg", "jre", "anchors")),
}
"""Locks that images are made of: the distribution that each is for, and its extras."""

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


def project_of(folder: Path) -> dict[str, object]:
    """The table `project` of a distribution's pyproject.toml."""
    found = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    assert isinstance(found, dict)
    return found


def version_of(root: Path) -> str:
    """The version that is released: that of the client's distribution."""
    return str(project_of(root / "clients/python")["version"])


def versions(root: Path) -> list[str]:
    """Distributions, images, compose and manifests have one version."""
    wanted = version_of(root)
    return [
        f"{where} has version {found}, not {wanted}" for where, found in _versions(root) if found != wanted
    ]


def _versions(root: Path) -> Iterator[tuple[str, str]]:
    for folder in DISTRIBUTIONS:
        yield f"{folder}/pyproject.toml", str(project_of(root / folder)["version"])
    files = [root / "Dockerfile", root / "docker-compose.yml", *sorted((root / "k8s").rglob("*.yaml"))]
    for file in files:
        text = file.read_text("utf-8")
        for found in re.findall(
            r"ARG VERSION=(\S+)|\$\{MUSTER_VERSION:-([^}]+)\}|image: muster-\w+:([^$\s]+)", text
        ):
            yield str(file.relative_to(root)), next(filter(None, found))


def changelog(root: Path) -> list[str]:
    """The changelog's first section is that of the version."""
    sections = re.findall(r"^## (\S+)", (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    wanted = version_of(root)
    return [] if sections[:1] == [wanted] else [f"CHANGELOG.md begins with {sections[:1]}, not with {wanted}"]


def locks(root: Path) -> list[str]:
    """Each lock pins, with hashes, a version that its distribution asks for."""
    problems = []
    for name, (project, extras) in LOCKED.items():
        text = (root / name).read_text("utf-8")
        pins = {canonicalize_name(found): version for found, version in _PIN.findall(text)}
        for block in re.split(r"\n(?=[A-Za-z0-9])", text):
            for pinned, _ in _PIN.findall(block):
                if "--hash=sha256:" not in block:
                    problems.append(f"{name}: {pinned} has no hash")
        for requirement in _requirements(root / project, extras):
            pinned = pins.get(canonicalize_name(requirement.name))
            if pinned is None or not requirement.specifier.contains(pinned, prereleases=True):
                problems.append(f"{name} has {pinned or 'no version'} of {requirement}: run ./x lock")
    return problems


def _requirements(project: Path, extras: tuple[str, ...]) -> Iterator[Requirement]:
    stated = tomllib.loads(project.read_text("utf-8"))["project"]
    texts = [*stated["dependencies"]]
    for extra in extras:
        texts += stated["optional-dependencies"][extra]
    for requirement in map(Requirement, texts):
        applies = requirement.marker is None or requirement.marker.evaluate()
        if applies and not requirement.name.startswith("muster-"):
            yield requirement


def tree(root: Path) -> list[str]:
    """What is released is what is committed."""
    changed = _git(root, "status", "--porcelain").splitlines()
    return [f"not committed: {', '.join(line[3:] for line in changed[:5])}"] if changed else []


def tag(root: Path) -> list[str]:
    """The version's tag is still to be set, or is this commit's."""
    name = f"v{version_of(root)}"
    if not _git(root, "tag", "--list", name):
        return []
    same = _git(root, "rev-parse", f"{name}^{{commit}}") == commit(root)
    return [] if same else [f"{name} is the tag of another commit"]


def commit(root: Path) -> str:
    """The commit that is released."""
    return _git(root, "rev-parse", "HEAD")


def commit_time(root: Path) -> int:
    """When it was committed, in seconds since 1970: the time that files in distributions get."""
    return int(_git(root, "log", "-1", "--format=%ct"))


def sums(folder: Path) -> list[str]:
    """`SHA256SUMS` names each file of the folder, with its digest."""
    lines = (folder / "SHA256SUMS").read_text("utf-8").splitlines()
    stated = {name: stands for stands, name in (line.split("  ", 1) for line in lines)}
    found = {file.name: digest(file) for file in folder.iterdir() if file.name != "SHA256SUMS"}
    differing = sorted(name for name in stated.keys() | found.keys() if stated.get(name) != found.get(name))
    return [f"SHA256SUMS does not agree with {', '.join(differing)}"] if differing else []


def digest(file: Path) -> str:
    """SHA-256 of a file, in hex."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip("\n")


BEFORE = {"version": versions, "changelog": changelog, "locks": locks, "tree": tree, "tag": tag}
"""Checks of the source, by name."""
