"""Programs that get a Ctrl-C at a given moment of their start: when they begin to read a module."""

import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import os, runpy, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
script, module = sys.argv[1:3]

class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
sys.argv = [script, *sys.argv[3:]]
runpy.run_path(script, run_name="__main__")
"""


def interrupted(command: str, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs an installed command that is interrupted when it begins to read a module.

    Args:
        command: name of the command.
        module: full name of the module.
        arguments: of the command.
    """
    script = Path(sys.executable).with_name(command)
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(script), module, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
