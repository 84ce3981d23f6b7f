"""Tokens that prove who calls, on real servers: good and bad ones, keys in a file and at an address."""

import asyncio
import base64
import hashlib
import hmac
import json
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import settings as of_hypothesis
from hypothesis import strategies as st
from kit.certificates import AUTHORITY, SERVER, WORKER, Certificates
from kit.issuer import AUDIENCE, NAME, Issuer, KeyAddress
from kit.waiting import until
from muster_protos.muster.v1 import discovery_pb2, discovery_pb2_grpc
from muster_runtime.rpc import _guard
from muster_runtime.rpc.access.metrics import KEYS_OUTDATED, AccessSource
from muster_runtime.rpc.channels import open_channel
from muster_runtime.rpc.identity import (
    LONGEST_NAME,
    NOBODY,
    Identity,
    Proof,
    current_identity,
    key_sources,
    keys,
    tokens,
)
from muster_runtime.rpc.identity.keys import BadKeys, KeySet
from muster_runtime.rpc.identity.settings import IdentitySettings
from muster_runtime.rpc.identity.tokens import Tokens
from muster_runtime.rpc.refusals import Unauthenticated
from muster_runtime.rpc.server import RpcServer, ServerSettings
from muster_runtime.rpc.trust.tls import TlsSettings
from muster_runtime.rpc.trust.trust import Trust
from muster_runtime.settings import SettingsError, load
from structlog.testing import capture_logs

METHOD = "/muster.v1.CoordinatorDiscoveryService/ListTopics"

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is not on the path; install it"
)


class Asking(discovery_pb2_grpc.CoordinatorDiscoveryServiceServicer):
    """Notes who calls."""

    def __init__(self) -> None:
        self.seen: list[Identity] = []

    async def ListTopics(self, request: object, context: object) -> discovery_pb2.ListTopicsResponse:
        self.seen.append(current_identity())
        return discovery_pb2.ListTopicsResponse()

    async def WatchCluster(self, request: object, context: object) -> AsyncIterator[Any]:
        yield discovery_pb2.WatchClusterResponse()
        await asyncio.Event().wait()


@asynccontextmanager
async def serving(settings: IdentitySettings, tls: TlsSettings | None = None) -> AsyncIterator["Server"]:
    server, asking = RpcServer(ServerSettings(), Trust(tls or TlsSettings(), identity=settings)), Asking()
    server.add(discovery_pb2_grpc.add_CoordinatorDiscoveryServiceServicer_to_server, asking)
    port = await server.start("127.0.0.1:0")
    try:
        yield Server(f"127.0.0.1:{port}", asking, AccessSource(server, "discovery"))
    finally:
        await server.stop(0)


class Server:
    """A server of the test, as its callers see it."""

    def __init__(self, address: str, asking: Asking, told: AccessSource) -> None:
        self.address = address
        self._asking = asking
        self._told = told

    async def keys_outdated(self) -> float:
        """What its metrics say of its keys."""
        (sample,) = [one for one in await self._told.read() if one.metric is KEYS_OUTDATED]
        return sample.value

    async def ask(self, *shown: str, trust: Trust | None = None) -> str:
        """Calls with these headers `authorization`; returns who it was, or the status and why."""
        async with open_channel(self.address, trust) as channel:
            call: Any = channel.unary_unary(METHOD)
            try:
                await call(b"", timeout=60, metadata=[("authorization", value) for value in shown])
            except grpc.aio.AioRpcError as error:
                return f"{error.code().name}: {error.details()}"
        identity = self._asking.seen.pop()
        return f"{identity.proof.value} {identity.name}".strip()

    async def show(self, token: str) -> str:
        """Calls with a token."""
        return await self.ask(f"Bearer {token}")


def in_file(folder: Path, content: bytes, **more: Any) -> IdentitySettings:
    file = folder / "keys.json"
    file.write_bytes(content)
    return IdentitySettings(
        token_issuer=NAME, token_audience=AUDIENCE, token_jwks_file=file, **{"required": True, **more}
    )


def at_address(keys_at: KeyAddress, certificates: Certificates, **more: Any) -> IdentitySettings:
    values = {"required": True, "token_jwks_refresh_ms": 86_400_000, "token_jwks_refetch_ms": 100, **more}
    return IdentitySettings(
        token_issuer=NAME,
        token_audience=AUDIENCE,
        token_jwks_url=keys_at.url,
        token_jwks_ca_file=Path(certificates.certificate(AUTHORITY)),
        **values,
    )


@pytest.mark.cluster
@pytest.mark.parametrize("algorithm", ["ES256", "ES384", "EdDSA", "RS256"])
async def test_a_token_of_the_issuer_names_its_caller(tmp_path: Path, algorithm: str) -> None:
    issuer = Issuer(algorithm)
    async with serving(in_file(tmp_path, issuer.key_set(), token_algorithms=algorithm)) as server:
        for _ in range(2):
            assert await server.show(issuer.token("system:serviceaccount:shop:worker")) == (
                "token system:serviceaccount:shop:worker"
            )
        assert await server.ask(f"bearer  {issuer.token(aud=['other', AUDIENCE])}") == "token worker"


def unsigned(issuer: Issuer, algorithm: str) -> str:
    """A token that is signed with nothing, or with the public key as if it were a secret."""

    def part(value: bytes) -> bytes:
        return base64.urlsafe_b64encode(value).rstrip(b"=")

    header = {"alg": algorithm, "typ": "JWT", "kid": issuer.key_id}
    _, claims, _ = issuer.token().split(".")
    signed = part(json.dumps(header).encode()) + b"." + claims.encode()
    secret = b"" if algorithm == "none" else hmac.digest(issuer.public(), signed, hashlib.sha256)
    return (signed + b"." + part(secret)).decode()


def bad_tokens(issuer: Issuer) -> dict[str, tuple[str, str]]:
    now_s = int(time.time())
    header, claims, signature = issuer.token().split(".")
    _, others_claims, _ = issuer.token("admin").split(".")
    nested = base64.urlsafe_b64encode(b"[" * 3_000).decode()
    wrong = "the token is signed with an algorithm that this server does not take"
    return {
        "expired": (issuer.token(exp=now_s - 60), "the token has expired"),
        "early": (issuer.token(nbf=now_s + 600), "the token is not valid yet"),
        "other issuer": (issuer.token(iss="https://other.example"), "the token is of another issuer"),
        "other audience": (issuer.token(aud="kubernetes"), "the token is for another audience"),
        "no audience": (issuer.token(aud=None), "the token has no claim aud"),
        "no end": (issuer.token(exp=None), "the token has no claim exp"),
        "no name": (issuer.token(sub=None), "the token has no claim sub"),
        "empty name": (issuer.token(""), "the claim sub of the token is not a name"),
        "long name": (issuer.token("x" * (LONGEST_NAME + 1)), "the claim sub of the token is not a name"),
        "control": (issuer.token("a\nb"), "the claim sub of the token is not a name"),
        "none": (unsigned(issuer, "none"), wrong),
        "public key as secret": (unsigned(issuer, "HS256"), wrong),
        "others' claims": (f"{header}.{others_claims}.{signature}", "the signature of the token is wrong"),
        "cut": (f"{header}.{claims}", "the token is no JSON Web Token"),
        "no token": ("hello", "the token is no JSON Web Token"),
        "nested": (f"{nested}.{claims}.{signature}", "the token is no JSON Web Token"),
        "other key": (Issuer().token(headers={"kid": issuer.key_id}), "the signature of the token is wrong"),
        "unknown key": (issuer.token(headers={"kid": "x"}), "signed with a key that is not its issuer's"),
    }


@pytest.mark.cluster
@pytest.mark.parametrize("required", [True, False])
async def test_a_token_that_proves_nothing_is_refused(tmp_path: Path, required: bool) -> None:
    """Also where no identity is required: whoever shows one is to be told that it does not count."""
    issuer = Issuer()
    async with serving(in_file(tmp_path, issuer.key_set(), required=required)) as server:
        for what, (token, reason) in bad_tokens(issuer).items():
            answer = await server.show(token)
            assert answer.startswith("UNAUTHENTICATED: "), (what, answer)
            assert reason in answer, (what, answer)
        bad_header = "UNAUTHENTICATED: the header authorization is not one `Bearer` with a token"
        good = f"Bearer {issuer.token()}"
        for shown in (("Basic abc",), ("Bearer ",), (good, good)):
            assert await server.ask(*shown) == bad_header
        none = await server.ask()
        assert none == (
            "UNAUTHENTICATED: the call shows no token, and this server asks who calls" * required or "none"
        )
        assert await server.show(issuer.token("x" * LONGEST_NAME)) == "token " + "x" * LONGEST_NAME


@pytest.mark.cluster
async def test_a_token_counts_no_longer_than_it_lasts(tmp_path: Path) -> None:
    """Also one that was verified before, and is not verified again."""
    issuer = Issuer()
    async with serving(in_file(tmp_path, issuer.key_set(), token_leeway_ms=0)) as server:
        ends_s = int(time.time()) + 3
        brief = issuer.token(exp=ends_s)
        answers: list[str] = []
        while not answers or time.time() <= ends_s:
            answers.append(await server.show(brief))
            await asyncio.sleep(0.05)
        assert answers[0] == "token worker"
        assert await server.show(brief) == "UNAUTHENTICATED: the token has expired"


@pytest.mark.cluster
async def test_a_stream_ends_with_the_token_that_opened_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_guard, "PROOF_GRACE_S", 0.1)
    issuer = Issuer()
    settings = in_file(tmp_path, issuer.key_set(), token_leeway_ms=0)
    async with serving(settings) as server, open_channel(server.address) as channel:
        watch: Any = channel.unary_stream(METHOD.replace("ListTopics", "WatchCluster"))
        lasting, brief = (
            watch(b"", timeout=60, metadata=[("authorization", f"Bearer {issuer.token(exp=ends_s)}")])
            for ends_s in (int(time.time()) + 3_600, int(time.time()) + 2)
        )
        assert await brief.read() == await lasting.read() == b""
        with pytest.raises(grpc.aio.AioRpcError, match="open another") as caught:
            await brief.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert not lasting.done()


@pytest.mark.cluster
async def test_a_renewed_file_of_keys_counts_at_once(tmp_path: Path) -> None:
    """For the tokens of the new key, and against those of a key that is gone; a bad file changes nothing."""
    issuer = Issuer()
    settings = in_file(tmp_path, issuer.key_set())
    assert settings.token_jwks_file is not None
    async with serving(settings) as server:
        before = issuer.token("before")
        assert await server.show(before) == "token before"
        settings.token_jwks_file.write_bytes(b'{"keys": []}')
        with capture_logs() as lines:
            assert "not its issuer's" in await server.show(issuer.token(headers={"kid": "x"}))
        assert "token_keys_not_used" in [line["event"] for line in lines]
        assert await server.keys_outdated() == 1
        assert await server.show(before) == "token before"
        issuer.rotate()
        settings.token_jwks_file.write_bytes(issuer.key_set())
        assert await server.show(issuer.token("after")) == "token after"
        assert "not its issuer's" in await server.show(before)
        assert await server.keys_outdated() == 0


@pytest.mark.cluster
@needs_openssl
async def test_who_shows_both_is_who_the_token_says(tmp_path: Path) -> None:
    issued, issuer = Certificates(tmp_path), Issuer()
    settings = in_file(tmp_path, issuer.key_set(), token_name_prefix="jwt:")
    ours, theirs = (
        TlsSettings(
            cert_file=Path(issued.certificate(name)),
            key_file=Path(issued.key(name)),
            ca_file=Path(issued.certificate(AUTHORITY)),
            require_client_certificate=True,
        )
        for name in (SERVER, WORKER)
    )
    async with serving(settings, ours) as server:
        trust = Trust(theirs)
        assert await server.ask(trust=trust) == "certificate localhost"
        assert await server.ask(f"Bearer {issuer.token()}", trust=trust) == "token jwt:worker"
        expired = await server.ask(f"Bearer {issuer.token(exp=1)}", trust=trust)
        assert expired == "UNAUTHENTICATED: the token has expired"
        issued.issue(WORKER, AUTHORITY, names="URI:jwt:worker")
        assert "begin as the names of tokens do" in await server.ask(trust=Trust(theirs))


# Keys at an address


@pytest.mark.cluster
@needs_openssl
async def test_an_address_that_never_ends_its_headers_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_sources, "_FETCH_S", 1.0)
    issued, issuer = Certificates(tmp_path), Issuer()
    keys_at = KeyAddress(issuer.key_set())
    keys_at.dribbles = True
    try:
        with keys_at.served(issued), capture_logs() as lines:
            async with serving(at_address(keys_at, issued)) as server:
                assert (await server.show(issuer.token())).startswith("UNAVAILABLE")
                assert "token_keys_not_fetched" in [line["event"] for line in lines]
                keys_at.dribbles = False

                async def named() -> bool:
                    return await server.show(issuer.token()) == "token worker"

                await until(named)
    finally:
        keys_at.dribbles = False


@pytest.mark.cluster
@needs_openssl
async def test_few_wait_for_an_address_that_takes_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who shows keys that nobody knows would else have all calls of a process waiting for it."""
    monkeypatch.setattr(tokens, "MOST_WAITING", 5)
    issued, issuer = Certificates(tmp_path), Issuer()
    keys_at = KeyAddress(issuer.key_set())
    try:
        with keys_at.served(issued):
            async with serving(at_address(keys_at, issued)) as server:
                assert await server.show(issuer.token()) == "token worker"
                keys_at.dribbles = True
                await asyncio.sleep(0.1)  # as long as there is between two fetches
                forged = [issuer.token(headers={"kid": f"forged-{number}"}) for number in range(20)]
                calls = [asyncio.create_task(server.show(token)) for token in forged]
                await until(lambda: sum(call.done() for call in calls) == 15, "those that have no place")
                refused = "UNAVAILABLE: the keys that tokens are checked with are being fetched"
                assert {call.result() for call in calls if call.done()} == {refused}
                assert await server.show(issuer.token("ann")) == "token ann"
                keys_at.dribbles = False
                answers = [answer[:15] for answer in await asyncio.gather(*calls)]
                assert answers.count("UNAUTHENTICATED") == 5
    finally:
        keys_at.dribbles = False


@pytest.mark.cluster
@needs_openssl
async def test_keys_are_fetched_and_an_unknown_one_is_looked_for(tmp_path: Path) -> None:
    issued, issuer = Certificates(tmp_path), Issuer()
    keys_at = KeyAddress(issuer.key_set())
    bearer = tmp_path / "bearer"
    bearer.write_text("secret\n")
    with keys_at.served(issued):
        async with serving(at_address(keys_at, issued, token_jwks_bearer_file=bearer)) as server:
            assert await server.show(issuer.token()) == "token worker"
            assert keys_at.shown == ["Bearer secret"]
            issuer.rotate(keep=True)
            keys_at.content = issuer.key_set()
            await asyncio.sleep(0.1)  # as long as there is between two fetches
            assert await server.show(issuer.token("after")) == "token after"
            assert len(keys_at.shown) == 2


@pytest.mark.cluster
@needs_openssl
async def test_unknown_keys_cause_one_fetch_in_a_while(tmp_path: Path) -> None:
    issued, issuer = Certificates(tmp_path), Issuer()
    keys_at = KeyAddress(issuer.key_set())
    with keys_at.served(issued):
        async with serving(at_address(keys_at, issued, token_jwks_refetch_ms=3_600_000)) as server:
            forged = [issuer.token(headers={"kid": f"forged-{number}"}) for number in range(20)]
            answers = await asyncio.gather(*map(server.show, forged))
            assert {answer[:15] for answer in answers} == {"UNAUTHENTICATED"}
            assert len(keys_at.shown) == 1
            assert await server.show(issuer.token()) == "token worker"


@pytest.mark.cluster
@needs_openssl
async def test_keys_that_cannot_be_fetched_leave_the_last_ones(tmp_path: Path) -> None:
    """Whatever the address answers; without any the server says that it does not know yet."""
    issued, issuer = Certificates(tmp_path), Issuer()
    keys_at = KeyAddress(None)
    large = b'{"keys": [' + b" " * key_sources.MOST_BYTES + b"]}"
    with keys_at.served(issued):
        async with serving(at_address(keys_at, issued)) as server:
            assert (await server.show(issuer.token())).startswith("UNAVAILABLE: the keys")
            keys_at.content = issuer.key_set()
            await asyncio.sleep(0.1)
            assert await server.show(issuer.token()) == "token worker"
            assert await server.keys_outdated() == 0
            for content in (None, b"no json", b'{"keys": []}', large):
                keys_at.content, asked = content, len(keys_at.shown)
                while len(keys_at.shown) == asked:
                    assert (await server.show(issuer.token(headers={"kid": "x"}))).startswith("UNAUTHENT")
                assert await server.show(issuer.token("still")) == "token still"
                assert await server.keys_outdated() == 1
            other = KeyAddress(Issuer().key_set())
            with other.served(issued):
                keys_at.redirect, asked = other.url, len(keys_at.shown)
                while len(keys_at.shown) == asked:
                    await server.show(issuer.token(headers={"kid": "x"}))
                assert await server.show(issuer.token("still")) == "token still"
                assert other.shown == []


@pytest.mark.cluster
@needs_openssl
async def test_an_address_that_is_not_trusted_gives_no_keys(tmp_path: Path) -> None:
    issued, issuer = Certificates(tmp_path / "ours"), Issuer()
    others = Certificates(tmp_path / "theirs")
    keys_at = KeyAddress(issuer.key_set())
    with keys_at.served(others), capture_logs() as lines:
        async with serving(at_address(keys_at, issued)) as server:
            assert (await server.show(issuer.token())).startswith("UNAVAILABLE: the keys")
    assert [line["known"] for line in lines if line["event"] == "token_keys_not_fetched"] == [False]


@pytest.mark.cluster
@needs_openssl
async def test_keys_are_fetched_again_without_being_asked_for(tmp_path: Path) -> None:
    issued, issuer = Certificates(tmp_path), Issuer()
    keys_at = KeyAddress(issuer.key_set())
    with keys_at.served(issued):
        async with serving(at_address(keys_at, issued, token_jwks_refresh_ms=1_000)) as server:
            await until(lambda: len(keys_at.shown) >= 2, "a second fetch")
            issuer.rotate()
            before, keys_at.content = len(keys_at.shown), issuer.key_set()
            await until(lambda: len(keys_at.shown) >= before + 2, "a fetch of the new keys")
            assert await server.show(issuer.token()) == "token worker"


# What is bounded


async def test_tokens_that_are_remembered_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "MOST_REMEMBERED", 3)
    issuer = Issuer()
    known = Tokens(in_file(tmp_path, issuer.key_set()))
    for number in range(5):
        assert await known.owner(issuer.token(f"worker-{number}")) == Identity(
            f"worker-{number}", Proof.TOKEN
        )
    assert len(known._verified) == 3
    with pytest.raises(Unauthenticated, match="longer than 16,384 characters"):
        await known.owner("x" * (tokens.LONGEST_TOKEN + 1))


@pytest.mark.slow
@of_hypothesis(deadline=None)  # it measures the machine
@given(
    st.text()
    | st.lists(st.binary().map(base64.urlsafe_b64encode), max_size=4).map(
        lambda parts: b".".join(parts).decode()
    )
)
def test_whatever_is_shown_it_is_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    known = Tokens(in_file(tmp_path_factory.mktemp("keys", numbered=True), KEYS))
    with pytest.raises(Unauthenticated):
        asyncio.run(known.owner(text))


KEYS = Issuer().key_set()


def test_keys_that_are_no_proof_are_not_used() -> None:
    def of(*entries: Any) -> bytes:
        return json.dumps({"keys": entries}).encode()

    secret = {"kty": "oct", "kid": "s", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"}
    (good,) = json.loads(KEYS)["keys"]
    useless: list[Any] = [
        secret,
        {**good, "use": "enc"},
        {**good, "alg": "HS256"},
        {**good, "alg": "RS256"},
        {"kty": "?"},
    ]
    useless += [{**good, "x": "!"}, {**good, "kid": 7}, {**good, "d": "AAAA"}, 7]
    for entry in useless:
        with pytest.raises(BadKeys, match="no key for ES256, RS256"):
            KeySet(of(entry), ("ES256", "RS256"))
    assert KeySet(of(*useless, good), ("ES256",)).find("key-1", "ES256") is not None
    assert KeySet(of(good), ("ES256",)).find(None, "ES256") is not None
    assert KeySet(of(good, {**good, "kid": "b"}), ("ES256",)).find(None, "ES256") is None
    for content in (b"", b"[]", b'{"keys": 7}', b"\xff", b"[" * 100_000):
        with pytest.raises(BadKeys, match="no JSON Web Key Set"):
            KeySet(content, ("ES256",))
    most = [{**good, "kid": str(number)} for number in range(keys.MOST_KEYS)]
    assert KeySet(of(*most), ("ES256",)).find("99", "ES256") is not None
    with pytest.raises(BadKeys, match="more than 100 keys"):
        KeySet(of(*most, good), ("ES256",))


WRONG = [
    ({"token_audience": "a"}, "MUSTER_IDENTITY_TOKEN_AUDIENCE needs MUSTER_IDENTITY_TOKEN_ISSUER"),
    ({"token_issuer": "i"}, "MUSTER_IDENTITY_TOKEN_ISSUER needs MUSTER_IDENTITY_TOKEN_AUDIENCE"),
    ({"token_issuer": "i", "token_audience": "a"}, "needs one of MUSTER_IDENTITY_TOKEN_JWKS_FILE and"),
    ({"token_jwks_url": "http://h/keys"}, "must be an https:// address without a user"),
    ({"token_jwks_url": "https://user:pw@h/keys"}, "must be an https:// address without a user"),
    ({"token_jwks_url": "https://h/" + "x" * 2_048}, "longer than 2,048 characters"),
    ({"token_algorithms": "HS256"}, "must be some of RS256, .* not HS256"),
    ({"token_algorithms": "none"}, "not none"),
    ({"token_algorithms": " "}, "not none"),
    ({"token_leeway_ms": 300_001}, "MUSTER_IDENTITY_TOKEN_LEEWAY_MS"),
    (
        {"token_issuer": "i", "token_audience": "a", "token_jwks_file": "f", "token_jwks_ca_file": "c"},
        "MUSTER_IDENTITY_TOKEN_JWKS_CA_FILE needs MUSTER_IDENTITY_TOKEN_JWKS_URL",
    ),
]


@pytest.mark.parametrize(("values", "problem"), WRONG)
def test_wrong_settings_of_tokens_are_explained(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        load(IdentitySettings, **values)


def test_keys_that_cannot_be_used_at_the_start_end_it(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"MUSTER_IDENTITY_TOKEN_JWKS_FILE: it is no JSON Web Key Set"):
        RpcServer(ServerSettings(), Trust(identity=in_file(tmp_path, b"{}")))
    assert NOBODY.name == ""
