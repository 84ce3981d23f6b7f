"""The composition: roles as processes, the development cluster, the verifier of the log and the demo."""

import os

# grpc's own lines are no JSON and go past our log; what matters of them is raised as an exception as well.
# It reads this when it is imported, so it is set before that. Whoever looks into grpc sets another value.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
