"""The process that computes aside: reads work from its standard input until that ends, and writes answers.

It bounds its own memory. Whoever started it bounds its time, and ends it when an answer is late.
"""

import resource
import signal
import sys
from collections.abc import Iterator
from typing import BinaryIO

from muster_coordinator.assignment.answers import answer_to
from muster_coordinator.assignment.lines import END, lines_of_answer, work_of

MEMORY_BYTES = 2 << 30
"""Address space that it may have."""


def main() -> None:
    """Runs until its input ends."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the input ends with the parent
    serve(sys.stdin.buffer, sys.stdout.buffer)


def serve(work: BinaryIO, answers: BinaryIO) -> None:
    """Announces itself with an empty line, and answers each piece of work.

    Args:
        work: read to its end.
        answers: written to.

    Raises:
        Exception: whatever the work raises; who started the process gets no answer then, and says so.
    """
    answers.write(END)
    answers.flush()
    while lines := list(_until_end(work)):
        for line in lines_of_answer(answer_to(work_of(lines))):
            answers.write(line)
        answers.write(END)
        answers.flush()


def _until_end(work: BinaryIO) -> Iterator[bytes]:
    for line in work:
        if line == END:
            return
        yield line


if __name__ == "__main__":
    main()
