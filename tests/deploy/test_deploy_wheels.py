"""The distributions as they would be published: what their wheels say and hold, and the client's alone."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import muster
import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = {
    "muster-protos": "protos",
    "muster-assignors": "assignors",
    "muster-client": "clients/python",
    "muster-server": "services",
    "muster-audit": "services/audit",
}
CLIENT = ("muster-protos", "muster-assignors", "muster-client")
FOREIGN = ("grpcio", "protobuf", "typing_extensions")
"""What the client needs of others, with what that needs."""

UV = str(Path(sys.executable).with_name("uv"))
OFFLINE = {**os.environ, "UV_OFFLINE": "1", "UV_NO_CONFIG": "1"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The wheel of each distribution."""
    folder = tmp_path_factory.mktemp("wheels")
    found = {}
    for name, source in DISTRIBUTIONS.items():
        command = [UV, "build", "-q", "--wheel", "--no-build-isolation", "--python", sys.executable]
        subprocess.run([*command, "--out-dir", str(folder), str(ROOT / source)], check=True, env=OFFLINE)
        (found[name],) = folder.glob(f"{name.replace('-', '_')}-*.whl")
    return found


def read_metadata(wheel: Path) -> Metadata:
    """The metadata of a wheel; raises where a field is not as the standards want it."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Metadata.from_email(archive.read(name), validate=True)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_wheel_says_whose_it_is_and_what_for(wheels: Mapping[str, Path], name: str) -> None:
    metadata = read_metadata(wheels[name])
    assert metadata.name == name
    assert metadata.summary
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.author == "Muster developers"
    assert str(metadata.requires_python) == ">=3.11"
    assert metadata.keywords
    assert "Typing :: Typed" in (metadata.classifiers or ())
    assert metadata.description_content_type == "text/markdown"
    assert (metadata.description or "").startswith(f"# {name}\n")
    assert "](" not in (metadata.description or ""), "a relative link leads nowhere on an index"
    assert not metadata.project_urls, "none is known"
    stated = tomllib.loads((ROOT / DISTRIBUTIONS[name] / "pyproject.toml").read_text())["project"]
    assert set(stated.get("optional-dependencies", {})) == set(metadata.provides_extra or ())


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_wheel_holds_its_licence_and_nothing_foreign(wheels: Mapping[str, Path], name: str) -> None:
    with zipfile.ZipFile(wheels[name]) as archive:
        files = archive.namelist()
        licences = [file for file in files if file.endswith(".dist-info/licenses/LICENSE")]
        assert [archive.read(file) for file in licences] == [(ROOT / "LICENSE").read_bytes()]
    packages = {file.split("/")[0] for file in files if ".dist-info/" not in file}
    assert all(package.startswith("muster") for package in packages), packages
    for package in packages:
        assert f"{package}/py.typed" in files
    assert not [file for file in files if "__pycache__" in file or "/tests/" in file]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_our_packages_ask_for_a_range_of_each_other(wheels: Mapping[str, Path], name: str) -> None:
    requirements = [Requirement(text) for text in map(str, read_metadata(wheels[name]).requires_dist or ())]
    for requirement in requirements:
        assert requirement.specifier, f"{requirement} takes any version"
        if requirement.name.startswith("muster-"):
            assert requirement.specifier.contains("0.2.0")
            assert requirement.specifier.contains("0.2.7")
            assert not requirement.specifier.contains("0.3.0")
        if name in CLIENT:
            assert not {"==", "==="} & {part.operator for part in requirement.specifier}, requirement


def test_the_client_alone_can_be_imported_in_a_new_environment(
    wheels: Mapping[str, Path], tmp_path: Path
) -> None:
    """Beside it there are only grpc and protobuf, which are borrowed: the tests need no network."""
    environment = tmp_path / "environment"
    python = str(environment / "bin" / "python")
    subprocess.run([UV, "venv", "-q", "--python", sys.executable, str(environment)], check=True, env=OFFLINE)
    install = [UV, "pip", "install", "-q", "--python", python, "--no-deps"]
    subprocess.run([*install, *(str(wheels[name]) for name in CLIENT)], check=True, env=OFFLINE)
    (packages,) = environment.glob("lib/python*/site-packages")
    ours = Path(sysconfig.get_path("purelib"))
    for name in ("grpc", "google", "typing_extensions.py"):
        (packages / name).symlink_to(ours / name)
    for name in FOREIGN:
        (told,) = ours.glob(f"{name}-*.dist-info")
        shutil.copytree(told, packages / told.name)
    subprocess.run([UV, "pip", "check", "--python", python], check=True, capture_output=True, env=OFFLINE)

    program = """
import json, muster, muster.assignors, muster.sinks
print(json.dumps({
    "names": [name for name in muster.__all__ if hasattr(muster, name)],
    "file": muster.__file__,
}))
"""
    found = json.loads(subprocess.check_output([python, "-I", "-c", program], cwd=tmp_path))
    assert found["names"] == muster.__all__
    assert Path(found["file"]).is_relative_to(environment)
