"""What artefacts consist of, as CycloneDX: distributions by their locks, images by what is in them."""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

_STATUS = re.compile(r"^(Package|Version|Architecture|Status): (.*)$", re.MULTILINE)


def of_lock(lock: Path, project: Path, into: Path) -> None:
    """Writes the parts of a distribution as its lock pins them."""
    # It warns that nobody knows which part needs which: a lock does not say it.
    command = [
        sys.executable,
        "-W",
        "ignore::UserWarning",
        "-m",
        "cyclonedx_py",
        "requirements",
        "--pyproject",
        str(project),
    ]
    command += ["--output-reproducible", "--output-file", str(into), str(lock)]
    subprocess.run(command, check=True, env=dict(os.environ))


def of_image(name: str, version: str, packages: Path, dpkg_status: str, into: Path) -> int:
    """Writes the parts of an image; returns how many there are.

    Args:
        name: of the image.
        version: its tag.
        packages: a copy of its folder of Python distributions.
        dpkg_status: Debian's list of what is installed, as text.
        into: the file.

    Raises:
        ValueError: the document does not fit CycloneDX's schema.
    """
    image = Component(name=name, version=version, type=ComponentType.CONTAINER, bom_ref=f"{name}:{version}")
    bom = Bom()
    bom.metadata.component = image
    for url in [*_python(packages), *_debian(dpkg_status)]:
        text = url.to_string()
        bom.components.add(
            Component(name=url.name, version=url.version, purl=url, bom_ref=text, type=ComponentType.LIBRARY)
        )
    bom.register_dependency(image, bom.components)
    written = JsonV1Dot6(bom).output_as_string(indent=2)
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(written)
    if problem is not None:
        raise ValueError(f"{into.name}: {problem}")
    into.write_text(written, "utf-8")
    return len(bom.components)


def _python(packages: Path) -> list[PackageURL]:
    found = importlib.metadata.distributions(path=[str(packages)])
    return [PackageURL("pypi", name=one.name.lower().replace("_", "-"), version=one.version) for one in found]


def _debian(status: str) -> list[PackageURL]:
    found = []
    for paragraph in status.split("\n\n"):
        fields = dict(_STATUS.findall(paragraph))
        if fields.get("Status", "").endswith(" installed"):
            qualifiers = {"arch": fields["Architecture"]}
            found.append(PackageURL("deb", "debian", fields["Package"], fields["Version"], qualifiers))
    return found
