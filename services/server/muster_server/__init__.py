"""The composition: roles as processes, the development cluster, the verifier of the log and the demo."""

import os

# gRPC's own log lines are no JSON and bypass our log; anything that matters is raised as an exception too.
# It reads this variable when it is imported. To debug gRPC, set another value.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

# grpc has no other way to refuse TLS 1.2: the one suite of that version that is left needs a key that nobody
# has. Those of TLS 1.3 are always allowed. A process hands the variable down to those that it starts.
_SUITES, _NONE_BELOW_1_3 = "GRPC_SSL_CIPHER_SUITES", "PSK-AES128-CBC-SHA"
if os.environ.get("MUSTER_TLS_MIN_VERSION", "1.3") != "1.2":
    os.environ.setdefault(_SUITES, _NONE_BELOW_1_3)
elif os.environ.get(_SUITES) == _NONE_BELOW_1_3:
    del os.environ[_SUITES]
