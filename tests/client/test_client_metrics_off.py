"""A worker that counts nothing: the program uses no OpenTelemetry."""

import subprocess
import sys

SILENT = """
import sys, muster
from muster._metrics.member import MemberMetrics, loop_was_blocked
from muster._values import TopicPartition

one = TopicPartition("t", 0)
metrics = MemberMetrics("g", ["t"], lambda: [one])
metrics.begin()
metrics.committed(one)
metrics.commit_took(0.1)
metrics.commit_refused([one], 25)
metrics.rebalanced(1)
metrics.retried(one, "failed")
metrics.unanswered("JoinGroup", 14)
loop_was_blocked(1.0)
metrics.end()
print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
"""


def test_nothing_of_opentelemetry_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", SILENT], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
