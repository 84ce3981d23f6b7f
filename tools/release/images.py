"""Images of the roles: built, measured, and read."""

import io
import json
import re
import subprocess
import tarfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TARGETS = ("metadata", "discovery", "coordinator", "server", "audit")
MOST_BYTES = {"coordinator": 90_000_000, "discovery": 90_000_000}
"""What an image may add to its base."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image that was built.

    Attributes:
        tag: its name and version.
        digest: SHA-256 of its configuration, in hex, which names its layers.
        user: who its processes run as.
        added_bytes: what its layers add to the base image.
    """

    tag: str
    digest: str
    user: str
    added_bytes: int


def base_of(dockerfile: str) -> str:
    """The image that all others begin with."""
    (found,) = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", dockerfile, re.MULTILINE)
    return str(found)


def build(root: Path, target: str, tag: str) -> Image:
    """Builds one of `TARGETS`.

    Raises:
        subprocess.CalledProcessError: it cannot be built.
    """
    _docker("build", "--quiet", "--target", target, "--tag", tag, str(root))
    found = _inspect(tag)
    base = _inspect(base_of((root / "Dockerfile").read_text("utf-8")))
    return Image(
        tag, found["Id"].removeprefix("sha256:"), found["Config"]["User"], found["Size"] - base["Size"]
    )


def problems(image: Image, target: str) -> list[str]:
    """What is wrong with an image: it is too large, or runs as root."""
    wrong = []
    if image.added_bytes > (most := MOST_BYTES.get(target, image.added_bytes)):
        wrong.append(
            f"{image.tag} adds {image.added_bytes / 1e6:.0f} MB to its base, not {most / 1e6:.0f} at most"
        )
    if image.user.split(":")[0] in ("", "0", "root"):
        wrong.append(f"{image.tag} runs as root")
    return wrong


def copy_of(tag: str, path: str) -> tarfile.TarFile:
    """A folder or file of an image, without starting it."""
    container = _docker("create", tag).decode().strip()
    try:
        return tarfile.open(fileobj=io.BytesIO(_docker("cp", f"{container}:{path}", "-")))
    finally:
        _docker("rm", container)


def can_be_built() -> bool:
    """Whether a Docker engine answers."""
    with suppress(OSError):
        return not subprocess.run(["docker", "version"], capture_output=True, check=False).returncode
    return False


def _inspect(tag: str) -> Any:
    (found,) = json.loads(_docker("image", "inspect", tag))
    return found


def _docker(*arguments: str) -> bytes:
    return subprocess.run(["docker", *arguments], check=True, stdout=subprocess.PIPE).stdout
