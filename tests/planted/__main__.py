"""`python -m planted`, which is `./x planted`."""

import sys

from planted.command import main

sys.exit(main())
