"""`./x safety`: programs that break a promise of docs/safety.md where it does not hold."""

import sys
from pathlib import Path

from kit.programs import command

if __name__ == "__main__":
    sys.exit(command(Path(__file__).parent))
