"""Why a process gave an operator's command no connection."""

import grpc
from muster._session.tls import TlsFiles, why_not
from muster_runtime.rpc.trust.tls import TlsSettings

_NO_CONNECTION = "failed to connect to all addresses"


async def why_unreached(address: str, error: grpc.aio.AioRpcError, tls: TlsSettings) -> str:
    """What keeps a command from a process, such as TLS at one end alone; empty: something else.

    Takes up to 2 s.

    Args:
        address: of the process.
        error: what came of a call to it.
        tls: what the command connects with.
    """
    if not (error.details() or "").startswith(_NO_CONNECTION):
        return ""
    return await why_not(
        address, None if tls.ca_file is None else TlsFiles(tls.ca_file, tls.cert_file, tls.key_file)
    )
