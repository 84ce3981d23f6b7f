"""Processes speak TLS 1.3 only, unless they are told that 1.2 will do."""

import os
import shutil
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from kit.certificates import AUTHORITY, Certificates

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not on the path; install it"),
]

SERVE = """
from concurrent.futures import ThreadPoolExecutor
import muster_server, grpc, sys
from muster_runtime.rpc.trust.tls import TlsSettings
from muster_runtime.settings import load

server = grpc.server(ThreadPoolExecutor(1))
print(server.add_secure_port("127.0.0.1:0", load(TlsSettings).server_credentials()), flush=True)
server.start()
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("least", "spoken", "is_taken"),
    [
        (None, ssl.TLSVersion.TLSv1_3, True),
        (None, ssl.TLSVersion.TLSv1_2, False),
        ("1.2", ssl.TLSVersion.TLSv1_2, True),
    ],
)
def test_older_versions_are_refused(
    tmp_path: Path, least: str | None, spoken: ssl.TLSVersion, is_taken: bool
) -> None:
    certificates = Certificates(tmp_path)
    settings = {**certificates.settings, "MUSTER_TLS_REQUIRE_CLIENT_CERTIFICATE": "false"}
    if least is not None:
        settings["MUSTER_TLS_MIN_VERSION"] = least
    inherited = {name: value for name, value in os.environ.items() if name != "GRPC_SSL_CIPHER_SUITES"}
    context = ssl.create_default_context(cafile=certificates.certificate(AUTHORITY))
    context.minimum_version = context.maximum_version = spoken
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    with subprocess.Popen(
        [sys.executable, "-c", SERVE],
        env={**inherited, **settings},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        try:
            with (
                socket.create_connection(("127.0.0.1", port), 60) as wire,
                context.wrap_socket(wire) as connection,
            ):
                taken = connection.version() == spoken.name.replace("v1_", "v1.")
        except (ssl.SSLError, ConnectionError):
            taken = False
        server.terminate()
    assert taken is is_taken
