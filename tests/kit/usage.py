"""What a process and those that it starts use: processors, and the memory of Spark's workers."""

import os
import threading
from collections import defaultdict
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def own_processes() -> dict[int, float]:
    """This process and all below it: processor seconds that each has used."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(path.parent.name)
        parents[pid], used[pid] = int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND

    def below(pid: int) -> bool:
        while pid not in (0, os.getpid()):
            pid = parents.get(pid, 0)
        return pid != 0

    return {pid: seconds for pid, seconds in used.items() if below(pid)}


class Usage:
    """What this process and all below it use while a block runs, looked at all the time: some of them end.

    Attributes:
        seconds: of processors, by what used them.
        memory_mb: the highest memory of one process (resident set, MiB), by what it is.
    """

    def __enter__(self) -> "Usage":
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.memory_mb: defaultdict[str, float] = defaultdict(float)
        self._before = own_processes()
        self._names: dict[int, str] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look_on)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look_on(self) -> None:
        last: dict[int, float] = {}
        while not self._done.wait(0.5):
            last |= self._look()
        last |= self._look()
        for pid, seconds in last.items():
            self.seconds[self._names[pid]] += seconds - self._before.get(pid, 0.0)

    def _look(self) -> dict[int, float]:
        found = own_processes()
        for pid in found:
            try:
                if pid not in self._names:
                    self._names[pid] = _name(pid)
                name = self._names[pid]
                kib = Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]
                self.memory_mb[name] = max(self.memory_mb[name], int(kib) / 1024)
            except (OSError, IndexError):
                continue
        return {pid: seconds for pid, seconds in found.items() if pid in self._names}


def _name(pid: int) -> str:
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    program = command.partition(b"\0")[0]
    for word, name in ((b"valkey", "server"), (b"java", "JVM")):
        if word in program:
            return name
    return "workers" if b"pyspark" in command else "this"
