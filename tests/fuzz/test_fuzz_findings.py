"""What the fuzzer makes of a target that breaks: one finding of each kind, short, to be played again."""

from itertools import islice
from pathlib import Path

import pytest

from fuzz import __main__ as command
from fuzz import corpus, plain, session, target
from fuzz.draw import Draw
from fuzz.target import Target, finding_of, shrunk


def _breaks(data: bytes) -> None:
    if b"bad" in data:
        raise KeyError("bad")
    if b"worse" in data:
        int("worse")


BREAKS = Target("breaks", "it breaks", _breaks, 100)


def test_a_finding_is_named_by_its_exception_and_place_and_made_short() -> None:
    found = finding_of(BREAKS, b"something bad happens")
    assert found is not None
    assert found.kind == "KeyError in test_fuzz_findings._breaks"
    assert shrunk(BREAKS, found).data == b"bad"
    assert finding_of(BREAKS, b"nothing happens") is None


def test_too_much_time_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "INPUT_CPU_S", -1.0)
    found = finding_of(BREAKS, b"")
    assert found is not None
    assert found.kind == "too much time"


def test_one_finding_of_each_kind_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "load", lambda _: BREAKS)
    watched = session.Watched("breaks", tmp_path, 4, 1e9)
    for data in (b"bad", b"also bad", b"fine", b"worse"):
        assert not watched.over
        watched.play(data)
    assert watched.over
    assert sorted(file.read_bytes() for file in tmp_path.glob("*.bin")) == [b"bad", b"worse"]
    watched.end()
    assert "2 kinds of findings" in (tmp_path / session.END_FILE).read_text()
    assert capsys.readouterr().out.count("FINDING") == 2

    monkeypatch.setattr(command, "load", lambda _: BREAKS)
    file = next(file for file in tmp_path.glob("*.bin") if file.read_bytes() == b"bad")
    assert command.main(["--target", "environment", "--replay", str(file)]) == 1
    (tmp_path / "fine").write_bytes(b"fine")
    assert command.main(["--target", "environment", "--replay", str(tmp_path / "fine")]) == 0


def test_draws_are_decided_by_bytes_and_end_with_them() -> None:
    draw = Draw(b"\x00\x80\x40\x01\x02\x03")
    assert draw.random() == 128 / 65_536
    assert draw.choice("ab") == "b"
    assert draw.take(2) == b"\x01\x02"
    assert not draw.over
    assert draw.randbytes(3) == b"\x03\0\0"
    drawn = [draw.randrange(9), draw.choice("ab"), draw.random()]
    assert drawn == [0, "a", 0]


def test_inputs_are_the_corpus_and_then_changes_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "FOLDER", tmp_path)
    assert corpus.write("breaks", [b"longer", b"a", b"a", b"\xff" * corpus.MAX_BYTES]) == 2
    assert corpus.read("breaks") == [b"a", b"longer"]
    some = list(islice(plain.inputs(BREAKS, 7), 50))
    assert some[:2] == [b"a", b"longer"]
    assert len(set(some)) > 40
    assert max(map(len, some)) <= BREAKS.longest_bytes
    assert some == list(islice(plain.inputs(BREAKS, 7), 50))
