#!/usr/bin/env python3
"""Prints what the audit finds in each log of its corpus; fails where it misses or wrongly accuses one.

./x audit-corpus
"""

import argparse
import sys
import tempfile
from pathlib import Path

from kit.logs.audit_corpus import judge, table
from muster_audit.spark.session import spark_session


def main() -> int:
    """Runs the corpus."""
    argparse.ArgumentParser(
        prog="./x audit-corpus", description=(__doc__ or "").partition("\n")[0]
    ).parse_args()
    with tempfile.TemporaryDirectory(prefix="muster-audit-corpus-") as name:
        folder = Path(name)
        log = folder / "spark.log"
        with spark_session("corpus", master="local[2]", folder=folder / "spark", log=log) as spark:
            verdicts, _ = judge(spark, folder)
    print(table(verdicts))
    wrong = [*verdicts.missed, *verdicts.accused, *verdicts.disagreements]
    wrong += [f"no log of the corpus breaks {invariant}" for invariant in verdicts.uncovered]
    for line in wrong:
        print(f"  {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
