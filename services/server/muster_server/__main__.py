"""`python -m muster_server` is `muster-server`."""

from muster_server.cli import main

if __name__ == "__main__":
    main()
