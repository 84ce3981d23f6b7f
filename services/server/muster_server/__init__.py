"""The composition: roles as processes, the development cluster, the verifier of the log and the demo."""

import os

# gRPC's own log lines are no JSON and bypass our log; anything that matters is raised as an exception too.
# It reads this variable when it is imported. To debug gRPC, set another value.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
