import json
from pathlib import Path

import pytest
from muster_runtime.addresses import Address, AddressList
from muster_runtime.effective import as_json, as_table, effective
from muster_runtime.logs import LogSettings
from muster_runtime.setting_facts import facts
from muster_runtime.settings import Settings, SettingsError, check_environment, load
from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict


class Example(Settings):
    model_config = SettingsConfigDict(env_prefix="MUSTER_EXAMPLE_")

    port: int = Field(default=7, ge=1, le=65_535, description="A port.")
    peers: AddressList = Field(default=(Address("a", 1),), description="Peers.")
    password: SecretStr = Field(default=SecretStr(""), description="A secret.")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for key in list(os.environ):
        if key.startswith("MUSTER_"):
            monkeypatch.delenv(key)


def problems(*known: type[Settings]) -> str:
    with pytest.raises(SettingsError) as caught:
        load(Example, known=known)
    return str(caught.value)


def test_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_EXAMPLE_PORT", "9")
    monkeypatch.setenv("MUSTER_EXAMPLE_PEERS", "x:1, [::1]:2")
    settings = load(Example, known=(LogSettings,))
    assert settings.port == 9
    assert settings.peers == (Address("x", 1), Address("::1", 2))


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_EXAMPLE_PORT", "")
    assert load(Example).port == 7


def test_arguments_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_EXAMPLE_PORT", "9")
    assert load(Example, port=10).port == 10


def test_every_wrong_value_is_named_with_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_EXAMPLE_PORT", "70000")
    monkeypatch.setenv("MUSTER_EXAMPLE_PEERS", "nonsense")
    text = problems()
    assert "MUSTER_EXAMPLE_PORT='70000'" in text
    assert "65535" in text
    assert "MUSTER_EXAMPLE_PEERS='nonsense': 'nonsense' is not an address of the form host:port" in text
    assert "pydantic" not in text


def test_an_unknown_key_is_refused_with_the_nearest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_EXAMPLE_PROT", "9")
    assert "MUSTER_EXAMPLE_PROT: there is no such setting; did you mean MUSTER_EXAMPLE_PORT?" in problems(
        LogSettings
    )
    with pytest.raises(SettingsError, match="MUSTER_EXAMPLE_PROT"):
        check_environment([Example])


def test_keys_of_the_other_groups_in_play_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_LOG_LEVEL", "debug")
    monkeypatch.setenv("MUSTER_PYTHON", "python3")
    check_environment([Example, LogSettings])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("MUSTER_COORDINATOR_PORT", "tcp://10.0.0.1:7410"),
        ("MUSTER_COORDINATOR_SERVICE_HOST", "10.0.0.1"),
        ("MUSTER_COORDINATOR_SERVICE_PORT", "7410"),
        ("MUSTER_COORDINATOR_SERVICE_PORT_GRPC", "7410"),
        ("MUSTER_COORDINATOR_PORT_7410_TCP", "tcp://10.0.0.1:7410"),
        ("MUSTER_COORDINATOR_PORT_7410_TCP_ADDR", "10.0.0.1"),
        ("MUSTER_EXAMPLE_PORT", "tcp://10.0.0.1:7410"),
    ],
)
def test_service_links_of_kubernetes_are_explained(
    monkeypatch: pytest.MonkeyPatch, key: str, value: str
) -> None:
    monkeypatch.setenv(key, value)
    text = problems(LogSettings)
    assert key in text
    assert "enableServiceLinks: false" in text
    assert "did you mean" not in text
    assert text.count(key) == 1


def test_secrets_come_from_files_and_are_never_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2\n")
    monkeypatch.setenv("MUSTER_EXAMPLE_PASSWORD_FILE", str(tmp_path / "secret"))
    settings = load(Example, known=(LogSettings,))
    assert settings.password.get_secret_value() == "hunter2"
    rows = effective([settings])
    assert "hunter2" not in as_table(rows) + as_json(rows) + repr(settings)
    assert "********" in as_table(rows)


def test_a_secret_in_both_places_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MUSTER_EXAMPLE_PASSWORD_FILE", str(tmp_path / "secret"))
    monkeypatch.setenv("MUSTER_EXAMPLE_PASSWORD", "hunter2")
    text = problems()
    assert "both set" in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("content", "reason"), [(b"", "empty"), (b"\xff", "UTF-8"), (b"x" * 70_000, "65536 bytes")]
)
def test_a_bad_file_of_a_secret_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes, reason: str
) -> None:
    (tmp_path / "secret").write_bytes(content)
    monkeypatch.setenv("MUSTER_EXAMPLE_PASSWORD_FILE", str(tmp_path / "secret"))
    assert reason in problems()


def test_a_missing_file_of_a_secret_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MUSTER_EXAMPLE_PASSWORD_FILE", str(tmp_path / "absent"))
    assert "No such file" in problems()


def test_settings_in_force_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_EXAMPLE_PORT", "9")
    rows = {row["name"]: row for row in json.loads(as_json(effective([load(Example), LogSettings()])))}
    assert rows["MUSTER_EXAMPLE_PORT"] == {
        "name": "MUSTER_EXAMPLE_PORT",
        "value": "9",
        "default": "7",
        "unit": "",
        "range": "1 to 65,535",
        "description": "A port.",
    }
    assert rows["MUSTER_EXAMPLE_PEERS"]["value"] == "a:1"
    assert "MUSTER_LOG_LEVEL" in rows
    assert [line for line in as_table(effective([load(Example)])).splitlines() if line.startswith("*")]


def test_what_is_known_of_a_setting_without_reading_it() -> None:
    known = {fact.name.removeprefix("MUSTER_EXAMPLE_"): fact for fact in facts(Example)}
    assert (known["PORT"].kind, known["PORT"].range, known["PORT"].default) == (
        "whole number",
        "1 to 65,535",
        "7",
    )
    assert (known["PEERS"].kind, known["PEERS"].default) == ("list of host:port", "a:1")
    assert (known["PASSWORD"].kind, known["PASSWORD"].secret) == ("secret", True)
    assert {fact.kind for fact in facts(LogSettings)} == {
        "`debug`, `info`, `warning`, `error`",
        "`auto`, `json`, `human`",
    }
