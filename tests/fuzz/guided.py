"""Atheris chooses inputs: libFuzzer changes those that reached new branches of the product.

In 40 s of CPU, each from nothing, these branches were reached (in brackets: features by libFuzzer's count):

              guided         random bytes   Hypothesis, whose choices no coverage guides
log_records     960 (3,313)    813 (2,148)    389   (635)
unary_calls   2,225 (6,025)  2,899 (9,167)  1,073 (1,601)

Of calls after calls libFuzzer's first inputs are too short to reach much, so it is given the corpus and some
long inputs at random to begin with.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import atheris

from fuzz.target import PRODUCT

HANGS_S = 120
"""An input that takes longer ends the process; libFuzzer keeps it."""
MEMORY_MIB = 3_072


@contextmanager
def instrumented() -> Iterator[None]:
    """What is imported within it tells libFuzzer which branches an input takes."""
    with atheris.instrument_imports(include=list(PRODUCT), enable_loader_override=False):
        yield


def choose(play: Callable[[bytes], None], folder: Path, seed: int, longest_bytes: int) -> NoReturn:
    """Plays inputs until `leave` is called.

    Args:
        play: plays one.
        folder: of inputs to begin with; those that reach something new are added.
        seed: of libFuzzer's choices.
        longest_bytes: no input is longer.
    """
    options = {
        "seed": seed,
        "max_len": longest_bytes,
        "len_control": 0,
        "timeout": HANGS_S,
        "rss_limit_mb": MEMORY_MIB,
        "verbosity": 0,
        "artifact_prefix": f"{folder.parent}/",
    }
    atheris.Setup([sys.argv[0], *(f"-{key}={value}" for key, value in options.items()), str(folder)], play)
    atheris.Fuzz()
    sys.exit(0)


def leave() -> NoReturn:
    """Ends the process from within an input: libFuzzer would count the end as a crash."""
    os._exit(0)
