"""Anchors: a cluster that was set back with every key is told from one that was not."""

import asyncio
import errno
import json
import os
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from kit.logs.log_builder import healthy
from kit.logs.log_nodes import CLUSTER, empty, nodes_with, set_back, trimmed_after_reading
from muster_core.audit.anchor import Anchor, End, Restore, excusing
from muster_core.features import ALL_FEATURES, Feature
from muster_core.position import Position
from muster_server.dev.redis_nodes import RedisNodes
from muster_server.initialise import initialise_log
from muster_server.nodes.command import app as nodes_command
from muster_server.verify.anchors import AnchorError, Anchoring, as_text, parse
from muster_server.verify.command import verify as verify_command
from muster_server.verify.stored_logs import StoredLogs
from muster_server.verify.verifier import verify
from typer import Typer
from typer.testing import CliRunner

SHARDS = 1
ANCHOR = Anchor(CLUSTER, 1_700_000_000_000, {0: End(Position(2, 22), b"h" * 32)})


class Keys:
    """Keys of two auditors."""

    def __init__(self, folder: Path) -> None:
        self.private, self.public, self.stranger = (folder / name for name in ("a.pem", "a.pub", "b.pem"))
        for path in (self.private, self.stranger):
            key = Ed25519PrivateKey.generate()
            path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            if path == self.private:
                public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
                self.public.write_bytes(public)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


def test_an_anchor_that_was_signed_is_read(keys: Keys) -> None:
    assert parse(as_text(ANCHOR, keys.private), "it", keys.public) == ANCHOR
    assert parse(as_text(ANCHOR, None), "it", None) == ANCHOR


@pytest.mark.parametrize("field", ["cluster_id", "made_at_ms", "ends"])
def test_one_that_was_changed_since_proves_nothing(keys: Keys, field: str) -> None:
    stored = json.loads(as_text(ANCHOR, keys.private))
    stored[field] = {"cluster_id": "x", "made_at_ms": 1, "ends": {"0": ["2-21", "00"]}}[field]
    with pytest.raises(AnchorError, match="changed since"):
        parse(json.dumps(stored).encode(), "it", keys.public)


def test_one_of_somebody_else_or_without_a_signature_proves_nothing(keys: Keys) -> None:
    with pytest.raises(AnchorError, match="signed with another key"):
        parse(as_text(ANCHOR, keys.stranger), "it", keys.public)
    with pytest.raises(AnchorError, match="not signed"):
        parse(as_text(ANCHOR, None), "it", keys.public)


def test_a_key_that_is_none_is_named(keys: Keys, tmp_path: Path) -> None:
    with pytest.raises(AnchorError, match="no private key"):
        as_text(ANCHOR, keys.public)
    with pytest.raises(AnchorError, match="no public key"):
        parse(as_text(ANCHOR, keys.private), "it", tmp_path / "absent")


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"format": 1, "ends": {"0": ["x", "y"]}}'])
def test_what_is_no_anchor_is_refused(text: bytes) -> None:
    with pytest.raises(AnchorError, match="holds no anchor"):
        parse(text, "it", None)


def test_nothing_is_left_of_one_that_the_disk_has_no_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    place = tmp_path / "anchor"
    place.write_text("of before")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AnchorError, match=r"anchor: .* No space left on device"):
        Anchoring(keep=str(place)).store("c", {})
    assert {one.name: one.read_text() for one in tmp_path.iterdir()} == {"anchor": "of before"}


def test_only_a_restore_since_the_anchor_excuses_what_is_gone() -> None:
    anchor = Anchor(CLUSTER, 0, {SHARDS: End(Position(1_000_006, 50), b"")})
    known = Restore(Position(1_000_006, 30), 0, "the anchor was made after it")
    later = Restore(Position(2_000_007, 41), 0, "a disk burned")
    assert excusing(anchor, SHARDS, [known]) is None
    assert excusing(anchor, SHARDS, [known, later]) == later


class Store(BaseHTTPRequestHandler):
    """A place for one file."""

    text = b""

    def do_PUT(self) -> None:  # the library's name
        Store.text = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def do_GET(self) -> None:  # the library's name
        self.send_response(200 if Store.text else 404)
        self.end_headers()
        self.wfile.write(Store.text)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Store)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/anchor.json"
    server.shutdown()
    server.server_close()


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[RedisNodes]:
    async with nodes_with(tmp_path / "nodes", {0: healthy(empty(0, SHARDS))}, count=3) as nodes:
        yield nodes


@pytest.mark.cluster
async def test_an_end_that_is_trimmed_while_its_log_is_read_was_there(
    nodes: RedisNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A right log was accused (L12)."""
    place = str(tmp_path / "anchor.json")
    verify(nodes.url, anchoring=Anchoring(keep=place))
    trimmed = trimmed_after_reading(monkeypatch, StoredLogs)
    assert verify(nodes.url, anchoring=Anchoring(place)).clean
    assert 0 in trimmed


@pytest.mark.cluster
class TestACluster:
    async def test_all_nodes_put_back_to_yesterday_are_found_out(
        self, nodes: RedisNodes, keys: Keys, url: str
    ) -> None:
        keeping = Anchoring(keep=url, private_key=keys.private)
        assert verify(nodes.url, anchoring=keeping).clean
        against = Anchoring(url, keys.public)
        assert verify(nodes.url, anchoring=against).checked["L12"] == SHARDS + 1
        set_back(nodes)
        assert verify(nodes.url).clean, "nothing on the nodes shows it"
        report = verify(nodes.url, anchoring=against)
        assert [(one.log, one.violation.invariant) for one in report.evidence] == [("shard 0", "L12")]
        kept = Store.text
        assert not verify(nodes.url, anchoring=Anchoring(url, keys.public, url, keys.private)).clean
        assert Store.text == kept, "a log that is broken makes no anchor"

    async def test_a_restore_that_was_meant_is_accepted_where_that_is_asked_for(
        self, nodes: RedisNodes, tmp_path: Path
    ) -> None:
        place = str(tmp_path / "anchor.json")
        verify(nodes.url, anchoring=Anchoring(keep=place))
        set_back(nodes, "a disk burned")
        assert not verify(nodes.url, anchoring=Anchoring(place)).clean
        report = verify(nodes.url, anchoring=Anchoring(place, keep=place, accept_restore=True))
        assert (report.clean, report.evidence) == (True, [])
        assert any(note.endswith("a disk burned") for note in report.notes)
        assert verify(nodes.url, anchoring=Anchoring(place)).clean, "the anchor is that of the restored log"

    @pytest.mark.parametrize("features", [(), tuple(ALL_FEATURES)], ids=["without the feature", "with it"])
    async def test_the_command_records_a_restore(self, tmp_path: Path, features: tuple[Feature, ...]) -> None:
        nodes = RedisNodes(tmp_path / "cluster", 3, fsync="no")
        await nodes.start()
        try:
            await initialise_log(nodes.url, SHARDS, CLUSTER, features=features)
            arguments = ["restored", "--redis", nodes.url, "--reason", "a disk burned"]
            done = await asyncio.to_thread(CliRunner().invoke, nodes_command, arguments)
            if not features:
                assert (done.exit_code, "feature restore-records" in done.stderr) == (2, True)
                return
            assert done.exit_code == 0, done.output
            report = verify(nodes.url)
        finally:
            await nodes.stop()
        assert report.clean, report.evidence
        (restore,) = report.restores
        assert (restore.reason, restore.position.epoch > 1_000_000) == ("a disk burned", True)

    async def test_a_rollback_without_a_restore_is_not_excused(
        self, nodes: RedisNodes, tmp_path: Path
    ) -> None:
        place = str(tmp_path / "anchor.json")
        verify(nodes.url, anchoring=Anchoring(keep=place))
        set_back(nodes)
        assert not verify(nodes.url, anchoring=Anchoring(place, accept_restore=True)).clean

    async def test_the_command(self, nodes: RedisNodes, tmp_path: Path) -> None:
        app, path = Typer(), tmp_path / "anchor.json"
        place = str(path)
        app.command()(verify_command)
        missing = CliRunner().invoke(app, [nodes.url, "--anchor", place])
        assert (missing.exit_code, "cannot be read" in missing.stderr) == (2, True)
        assert CliRunner().invoke(app, [nodes.url, "--keep-anchor", place]).exit_code == 0
        assert CliRunner().invoke(app, [nodes.url, "--anchor", place]).exit_code == 0
        other = json.loads(path.read_text("utf-8")) | {"cluster_id": "another"}
        path.write_text(json.dumps(other))
        foreign = CliRunner().invoke(app, [nodes.url, "--anchor", place])
        assert (foreign.exit_code, "an anchor of cluster another" in foreign.stderr) == (2, True)
        set_back(nodes)
        path.write_text(json.dumps(other | {"cluster_id": CLUSTER}))
        assert CliRunner().invoke(app, [nodes.url, "--anchor", place]).exit_code == 1
