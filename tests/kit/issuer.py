"""Who makes tokens: keys, tokens signed with them, and the set of keys in a file or at an address."""

import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms
from kit.certificates import SERVER, Certificates

NAME, AUDIENCE = "https://issuer.example", "muster"

_KEYS: dict[str, Any] = {
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ES384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
    "RS256": lambda: rsa.generate_private_key(65_537, 2_048),
}


class Issuer:
    """Makes tokens; each key has an id, and the newest one signs.

    Args:
        algorithm: of its keys.
    """

    def __init__(self, algorithm: str = "ES256") -> None:
        self._algorithm = algorithm
        self._private: dict[str, Any] = {}
        self._made = 0
        self.rotate()

    @property
    def settings(self) -> dict[str, str]:
        """Settings of a process that takes its tokens, but for where its keys are."""
        return {
            "MUSTER_IDENTITY_TOKEN_ISSUER": NAME,
            "MUSTER_IDENTITY_TOKEN_AUDIENCE": AUDIENCE,
            "MUSTER_IDENTITY_TOKEN_ALGORITHMS": self._algorithm,
            "MUSTER_IDENTITY_REQUIRED": "true",
        }

    @property
    def key_id(self) -> str:
        """The id of the key that signs."""
        return list(self._private)[-1]

    def rotate(self, *, keep: bool = False) -> None:
        """Signs with another key from now on; those before are forgotten unless they are kept."""
        self._made += 1
        before = self._private if keep else {}
        self._private = {**before, f"key-{self._made}": _KEYS[self._algorithm]()}

    def public(self, key_id: str | None = None) -> bytes:
        """A public key, as PEM."""
        key = self._private[key_id or self.key_id].public_key()
        pem: bytes = key.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return pem

    def key_set(self, **more: Any) -> bytes:
        """Its keys, as a JSON Web Key Set; `more` goes into each."""
        algorithm: Any = get_default_algorithms()[self._algorithm]
        keys = [
            {**json.loads(algorithm.to_jwk(key.public_key())), "kid": key_id, **more}
            for key_id, key in self._private.items()
        ]
        return json.dumps({"keys": keys}).encode()

    def token(self, name: str = "worker", *, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token of an hour; claims that are None are left out."""
        now_s = int(time.time())
        all_claims = {
            "iss": NAME, "aud": AUDIENCE, "sub": name, "iat": now_s, "exp": now_s + 3_600, **claims
        }  # fmt: skip
        return jwt.encode(
            {claim: value for claim, value in all_claims.items() if value is not None},
            self._private[self.key_id],
            self._algorithm,
            {"kid": self.key_id, **(headers or {})},
        )


class KeyAddress:
    """Serves a set of keys by https.

    Attributes:
        content: what it answers with; None: a failure.
        redirect: where it sends its callers instead; empty: nowhere.
        dribbles: whether it sends a header byte by byte, and none after that.
        shown: the header `authorization` of each request, in their order.
    """

    def __init__(self, content: bytes | None) -> None:
        self.content = content
        self.redirect = ""
        self.dribbles = False
        self.shown: list[str | None] = []
        self.url = ""

    def dribble(self, out: BufferedIOBase) -> None:
        """Sends bytes of a header until it is told to stop, or nobody listens."""
        with suppress(OSError):
            while self.dribbles:
                out.write(b"x")
                time.sleep(0.05)

    @contextmanager
    def served(self, certificates: Certificates) -> Iterator[None]:
        """Serves until the block ends."""
        here = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                here.shown.append(self.headers["authorization"])
                if here.dribbles:
                    self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
                    here.dribble(self.wfile)
                    return
                if here.redirect:
                    self.send_response(302)
                    self.send_header("location", here.redirect)
                else:
                    self.send_response(500 if here.content is None else 200)
                content = here.content or b""
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                """Nobody wants to read it."""

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.certificate(SERVER), certificates.key(SERVER))
        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
            self.url = f"https://127.0.0.1:{server.server_port}/keys"
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
            thread.start()
            try:
                yield
            finally:
                server.shutdown()
                thread.join()
