"""What `kubectl apply -k` would apply."""

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

Manifest: TypeAlias = dict[str, Any]

K8S = Path(__file__).resolve().parents[2] / "k8s"


def read(text: str) -> list[Manifest]:
    """The documents of a YAML stream."""
    return [document for document in yaml.safe_load_all(text) if document]


def render(overlay: str, change: Callable[[str], str] = str) -> list[Manifest]:
    """The manifests of an overlay; skips where there is nothing that renders.

    Args:
        overlay: its name.
        change: takes the text of its kustomization and returns the one to use.
    """
    if shutil.which("kustomize"):
        command = ["kustomize", "build"]
    elif shutil.which("kubectl"):
        command = ["kubectl", "kustomize"]
    else:
        pytest.skip("there is neither kustomize nor kubectl on the path: install one of them to render k8s/")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(K8S, Path(folder) / "k8s")) / "overlays" / overlay
        kustomization = copy / "kustomization.yaml"
        kustomization.write_text(change(kustomization.read_text("utf-8")), "utf-8")
        done = subprocess.run([*command, str(copy)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return read(done.stdout)
