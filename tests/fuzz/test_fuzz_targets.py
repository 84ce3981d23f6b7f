"""Each target holds on its corpus and on some changes of it. `./x fuzz` plays more, by what inputs reach."""

from itertools import islice

import pytest

from fuzz import corpus, plain
from fuzz.target import NAMES, finding_of, load

CHANGED = {
    "group_lives": 40,
    "incremental_lives": 5,
    "session_frames": 40,
    "shard_lives": 10,
    "unary_calls": 40,
}
"""Changed inputs of targets that take long for one; others get more."""

_OFTEN = 150
_SEED = 1


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_no_input_breaks_it(name: str) -> None:
    target = load(name)
    kept = corpus.read(name)
    assert kept, "no input is kept for it: ./x fuzz --target NAME --keep"
    for data in islice(plain.inputs(target, _SEED), len(kept) + CHANGED.get(name, _OFTEN)):
        finding = finding_of(target, data)
        assert finding is None, f"{finding.kind}\n{finding.trace}\nof {data.hex()}"
