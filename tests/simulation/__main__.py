"""Run with `./x simulate`, or with `python -m simulation` where tests/ is on the path."""

from simulation.command import main

raise SystemExit(main())
