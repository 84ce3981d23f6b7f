"""Asks a running process by gRPC's health protocol whether it serves.

`python -m muster_server.probe HOST:PORT`; containers run it every few seconds, so it imports little: no
settings, no event loop. With `MUSTER_TLS_CA_FILE` it uses TLS, and presents the process's own certificate if
there is one.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

EXIT_NOT_SERVING = 1
EXIT_MISCONFIGURED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Asks once and prints the answer, e.g. `serving`.

    Returns:
        0 if the process serves (with `--alive`: if it answers at all), 1 if not, 2 if the certificates cannot
        be read.
    """
    parser = argparse.ArgumentParser(prog="probe", description="Asks a process of Muster whether it serves.")
    parser.add_argument("address", metavar="HOST:PORT", help="where the process listens")
    parser.add_argument("--alive", action="store_true", help="any answer will do")
    parser.add_argument("--limit-ms", type=int, default=1_000, help="time for the answer (default: 1000)")
    asked = parser.parse_args(arguments)
    try:
        credentials = _credentials(os.environ)
    except OSError as error:
        print(f"probe: {error.filename}: the file cannot be read: {error.strerror}", file=sys.stderr)
        return EXIT_MISCONFIGURED
    channel = (
        grpc.insecure_channel(asked.address)
        if credentials is None
        else grpc.secure_channel(asked.address, credentials)
    )
    with channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=asked.limit_ms / 1_000
            )
        except grpc.RpcError as error:
            print(f"probe: {asked.address}: {error.details()}", file=sys.stderr)
            return EXIT_NOT_SERVING
    print(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status).lower().replace("_", " "))
    serves = answer.status == health_pb2.HealthCheckResponse.SERVING
    return 0 if serves or asked.alive else EXIT_NOT_SERVING


def _credentials(environment: Mapping[str, str]) -> grpc.ChannelCredentials | None:
    authority, key, certificate = (
        Path(file).read_bytes() if file else None
        for file in (environment.get(f"MUSTER_TLS_{name}_FILE") for name in ("CA", "KEY", "CERT"))
    )
    if authority is None and certificate is None:
        return None
    return grpc.ssl_channel_credentials(authority, key, certificate)


if __name__ == "__main__":
    sys.exit(main())
