"""`muster access check` on files of rules."""

import json
import os
import sys
from pathlib import Path

import pytest
from kit import forked
from muster_server.access.command import EXIT_REFUSED, EXIT_UNUSABLE

pytestmark = pytest.mark.cluster

MUSTER = str(Path(sys.executable).with_name("muster"))
RULES = """
[[rule]]
who = ["spiffe://shop/*"]
verbs = ["join", "commit", "read"]
groups = ["orders-*"]

[[rule]]
who = ["root"]
verbs = ["admin"]
cluster = true
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "access.toml"
    file.write_text(RULES)
    return file


def check(*arguments: str, **settings: str) -> tuple[int, str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MUSTER_")}
    done = forked.run([MUSTER, "access", "check", *arguments], {**clean, **settings})
    return done.returncode, done.stdout, done.stderr


def test_it_says_which_rule_allows_and_why_nothing_does(file: Path) -> None:
    assert check("spiffe://shop/w", "join", "group:orders-eu", "--file", str(file)) == (
        0,
        "allowed: rule 1 allows it: spiffe://shop/* may join, commit, read: groups orders-*\n",
        "",
    )
    code, out, _ = check("spiffe://shop/w", "admin", "group:orders-eu", MUSTER_ACCESS_FILE=str(file))
    assert code == EXIT_REFUSED
    assert out == (
        "refused: no rule for 'spiffe://shop/w' allows admin of group 'orders-eu'; rules that name it: 1\n"
    )
    code, out, _ = check("root", "delete", "topic:t", "-o", "json", "--file", str(file))
    assert (code, json.loads(out)["rule"]) == (0, 2)
    code, out, _ = check("", "describe", "cluster", "-o", "json", "--file", str(file))
    assert (code, json.loads(out)) == (
        EXIT_REFUSED,
        {"allowed": False, "rule": None, "reason": "no rule is for a caller without an identity"},
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("a", "join", "orders"), "WHAT 'orders': use group:NAME, topic:NAME or cluster"),
        (("a", "join", "group:"), "WHAT 'group:': use group:NAME"),
        (("a", "join", "topic:t"), "VERB 'join': of a topic there are create, alter, delete, describe"),
        (("a", "join", "group:g", "-o", "xml"), "--output 'xml': use text or json"),
        (("a", "join", "group:g"), "name the file of rules with --file, or with MUSTER_ACCESS_FILE"),
    ],
)
def test_a_wrong_question_is_refused(arguments: tuple[str, ...], problem: str) -> None:
    code, out, errors = check(*arguments)
    assert (code, out) == (EXIT_UNUSABLE, "")
    assert errors.startswith(f"muster access: {problem}")


def test_a_file_that_is_wrong_is_refused_by_rule_and_field(file: Path) -> None:
    file.write_text(RULES.replace('"read"', '"raed"').replace('who = ["root"]', ""))
    code, _, errors = check("a", "join", "group:g", "--file", str(file))
    assert code == EXIT_UNUSABLE
    first, second = errors.splitlines()
    assert "access.toml': rule 1: verbs[2]: 'raed' is none of a group" in first
    assert "access.toml': rule 2: who: field required" in second
