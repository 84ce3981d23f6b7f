"""Puts the alert rules of `alerts/muster.yaml` into the manifest that the Prometheus operator reads.

python tools/kubernetes_rules.py            writes k8s/components/monitoring/rules.yaml
python tools/kubernetes_rules.py --check    fails where it is not what would be written
"""

import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RULES = ROOT / "alerts" / "muster.yaml"
MANIFEST = ROOT / "k8s" / "components" / "monitoring" / "rules.yaml"

HEADER = """\
# Made by `python tools/kubernetes_rules.py` from alerts/muster.yaml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: muster
  labels: {app.kubernetes.io/name: muster}
spec:
"""


def manifest(rules: str) -> str:
    """The manifest: the rules as they stand, below `spec`, without the comment before them."""
    groups = rules[rules.index("groups:") :]
    return HEADER + textwrap.indent(groups, "  ")


def main() -> int:
    """Exit code 1: `--check` found a difference."""
    wanted = manifest(RULES.read_text("utf-8"))
    if "--check" not in sys.argv[1:]:
        MANIFEST.write_text(wanted, "utf-8")
        return 0
    if MANIFEST.read_text("utf-8") == wanted:
        return 0
    print(f"{MANIFEST.relative_to(ROOT)} is not what {RULES.relative_to(ROOT)} says: run {sys.argv[0]}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
