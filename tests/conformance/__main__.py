"""`./x conformance`: says which of Kafka's behaviours Muster has, and lets a recorded Kafka judge it."""

import sys

from conformance.command import main

if __name__ == "__main__":
    sys.exit(main())
