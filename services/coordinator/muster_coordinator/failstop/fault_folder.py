"""Keeps the events that made the group protocol fail, in a few private files."""

import os
import secrets
import stat
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import structlog
from google.protobuf import json_format
from muster_protos.muster.internal.v1 import fault_pb2

log = structlog.get_logger()

_PREFIX, _SUFFIX, _UNFINISHED = "fault-", ".json", ".part"
_PRIVATE_FOLDER, _PRIVATE_FILE = 0o700, 0o600


def default_folder() -> Path:
    """A folder of this user's in the system's one for temporary files."""
    return Path(tempfile.gettempdir()) / f"muster-faults-{os.getuid()}"


class FaultFolder:
    """Keeps the newest failures, each in a file that nobody but this user can read.

    Args:
        folder: where; made when the first file is written.
        max_files: so many; older ones are removed.
        max_bytes: size of one.
    """

    def __init__(self, folder: Path, max_files: int, max_bytes: int) -> None:
        self._folder = folder
        self._max_files = max_files
        self._max_bytes = max_bytes

    @property
    def max_events_bytes(self) -> int:
        """How much of a group's history is worth keeping: as text it takes about twice as much."""
        return self._max_bytes // 2

    def keep(self, fault: fault_pb2.Fault) -> str:
        """Writes a failure; returns its file, empty if that cannot be."""
        if not self._max_files:
            return ""
        failed_at = datetime.fromtimestamp(fault.failed_at_ms / 1000, UTC)
        name = f"{_PREFIX}{failed_at:%Y%m%dT%H%M%S}-shard-{fault.shard}-{secrets.token_hex(4)}{_SUFFIX}"
        path = self._folder / name
        try:
            self._prepare()
            self._make_room()
            _write(path, _bounded(fault, self._max_bytes))
        except (OSError, ValueError) as error:
            log.warning("fault_not_kept", folder=str(self._folder), problem=str(error))
            return ""
        return str(path)

    def _prepare(self) -> None:
        self._folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
        found = self._folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (os.getuid(), 0):
            raise PermissionError(f"{self._folder} is no folder of this user's")

    def _make_room(self) -> None:
        """Makes room for one more file, and removes what a dead process left unfinished."""
        for unfinished in self._folder.glob(f"{_PREFIX}*{_UNFINISHED}"):
            unfinished.unlink(missing_ok=True)
        files = sorted(self._folder.glob(f"{_PREFIX}*{_SUFFIX}"))
        for file in files[: len(files) - self._max_files + 1]:
            file.unlink(missing_ok=True)


def _write(path: Path, content: bytes) -> None:
    """Writes a file whole, on a disk that may be full, or leaves none."""
    unfinished = path.with_suffix(_UNFINISHED)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(unfinished, flags, _PRIVATE_FILE), "wb") as file:
            file.write(content)
        unfinished.rename(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def _bounded(fault: fault_pb2.Fault, max_bytes: int) -> bytes:
    """The failure as JSON; of one that is too large only the last event, or not even that."""
    content = _json(fault)
    if len(content) > max_bytes:
        less = fault_pb2.Fault()
        less.CopyFrom(fault)
        del less.snapshot_parts[:], less.events[:-1]
        less.complete = False
        content = _json(less)
        if len(content) > max_bytes:
            del less.events[:]
            content = _json(less)
    return content


def _json(fault: fault_pb2.Fault) -> bytes:
    return json_format.MessageToJson(fault, preserving_proto_field_name=True).encode()
