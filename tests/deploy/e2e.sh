#!/bin/sh
# Installs Muster (overlay `test`) on whatever cluster kubectl points at, starts 30 workers that commit all the time,
# breaks one thing after the other, and says what the workers noticed. docs/kubernetes.md is the same by hand.
#
#   tests/deploy/e2e.sh [--only PATTERN] [--keep]
#
# The cluster must have the images muster-{server,metadata,discovery,coordinator,audit}:0.2.0 and redis:8-trixie.
set -eu
cd "$(dirname "$0")/../.."
command -v kubectl >/dev/null || { echo "e2e.sh: kubectl is not on the path" >&2; exit 2; }
kubectl version >/dev/null 2>&1 || { echo "e2e.sh: kubectl reaches no cluster: kubectl config current-context" >&2; exit 2; }
exec ./x e2e "$@"
