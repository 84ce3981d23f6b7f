"""`muster-server replay`: repeats an event that made the group protocol fail."""

import sys
import traceback
from pathlib import Path

from google.protobuf import json_format
from muster_core.fault import FaultUnusable, repeat
from muster_protos.muster.internal.v1 import fault_pb2
from muster_runtime.about import software_version
from muster_runtime.logs import clean_text

EXIT_FAILED = 1
EXIT_UNREADABLE = 2


def replay(path: Path) -> int:
    """Repeats a stored failure and prints the result.

    Args:
        path: a file of `MUSTER_FAULT_FOLDER`.

    Returns:
        0: nothing failed; 1: the event failed again, with a traceback; 2: the file cannot be used.
    """
    try:
        fault = json_format.Parse(path.read_bytes(), fault_pb2.Fault(), ignore_unknown_fields=True)
    except (OSError, json_format.ParseError, UnicodeDecodeError) as error:
        return _unreadable(path, str(error))
    sys.stdout.write(_about(fault))
    try:
        repeat(fault)
    except FaultUnusable as error:
        return _unreadable(path, str(error))
    except Exception:  # the failure is what is to be reproduced
        traceback.print_exc()
        sys.stdout.write(f"it failed again, with version {software_version()}\n")
        return EXIT_FAILED
    less = "" if fault.complete else "; the file has only a part of what happened before, so it may yet fail"
    sys.stdout.write(f"it did not fail with version {software_version()}{less}\n")
    return 0


def _about(fault: fault_pb2.Fault) -> str:
    whose = (
        f"group {clean_text(fault.group_id)} of shard {fault.shard}"
        if fault.group_id
        else f"shard {fault.shard}"
    )
    error, version = clean_text(fault.error), clean_text(fault.version)
    return f"{whose}, version {version}, {len(fault.events)} events: {error}\n"


def _unreadable(path: Path, problem: str) -> int:
    sys.stderr.write(f"muster-server replay: {path}: {problem}\n")
    return EXIT_UNREADABLE
