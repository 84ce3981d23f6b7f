"""`./x abuse`: what a caller may try who means harm, beside a worker that must not notice."""

import sys
from pathlib import Path

from kit.programs import command

if __name__ == "__main__":
    sys.exit(command(Path(__file__).parent))
