"""Rights: what a file may hold, what it decides, and that it is followed."""

from hashlib import sha256
from pathlib import Path
from random import Random

import pytest
from google.protobuf.descriptor import FileDescriptor
from muster_protos.muster.v1 import (
    common_pb2,
    coordinator_pb2,
    discovery_pb2,
    group_conversion_pb2,
    group_settings_pb2,
    incremental_pb2,
    quotas_pb2,
    session_pb2,
)
from muster_runtime.rpc._files import MAX_BYTES
from muster_runtime.rpc.access import access as followed
from muster_runtime.rpc.access.access import TOLD_MAX, Access, AccessSettings
from muster_runtime.rpc.access.calls import EACH_FRAME, NEEDS
from muster_runtime.rpc.access.keeper import Keeper
from muster_runtime.rpc.access.rules import MAX_ALL_PATTERNS, MAX_PATTERNS, MAX_RULES, AccessError, Rules
from muster_runtime.rpc.access.verbs import VERBS, Kind, Verb
from muster_runtime.settings import SettingsError
from structlog.testing import capture_logs

RULES = b"""
[[rule]]
who = ["spiffe://shop/ns/orders/*", "ann"]
verbs = ["join", "commit"]
groups = ["orders", "orders-*"]

[[rule]]
who = ["*"]
verbs = ["create"]
topics = ["scratch-*"]

[[rule]]
who = ["ann"]
verbs = ["admin"]
groups = ["orders"]

[[rule]]
who = ["root"]
verbs = ["admin"]
cluster = true
"""
WORKER = "spiffe://shop/ns/orders/sa/worker"
GROUP, TOPIC, CLUSTER = Kind.GROUP, Kind.TOPIC, Kind.CLUSTER


@pytest.mark.parametrize(
    ("who", "verb", "kind", "name", "rule"),
    [
        (WORKER, Verb.JOIN, GROUP, "orders", 1),
        (WORKER, Verb.COMMIT, GROUP, "orders-eu", 1),
        (WORKER, Verb.JOIN, GROUP, "orders_eu", 0),
        (WORKER, Verb.JOIN, GROUP, "payments", 0),
        (WORKER, Verb.READ, GROUP, "orders", 0),
        (WORKER, Verb.DESCRIBE, GROUP, "orders", 1),
        (WORKER, Verb.JOIN, TOPIC, "orders", 0),
        (WORKER, Verb.ADMIN, GROUP, "orders", 0),
        ("spiffe://shop/ns/orders", Verb.JOIN, GROUP, "orders", 0),
        ("spiffe://shop/ns/ordersx/sa/worker", Verb.JOIN, GROUP, "orders", 0),
        ("", Verb.CREATE, TOPIC, "scratch-1", 2),
        ("", Verb.DESCRIBE, TOPIC, "scratch-1", 2),
        ("", Verb.DELETE, TOPIC, "scratch-1", 0),
        ("ann", Verb.READ, GROUP, "orders", 3),
        ("ann", Verb.ADMIN, GROUP, "orders-eu", 0),
        ("anna", Verb.JOIN, GROUP, "orders", 0),
        ("ann", Verb.DESCRIBE, CLUSTER, "", 0),
        ("root", Verb.DESCRIBE, CLUSTER, "", 4),
        ("root", Verb.JOIN, GROUP, "payments", 4),
        ("root", Verb.DELETE, TOPIC, "t", 4),
    ],
)
def test_what_rules_decide(who: str, verb: Verb, kind: Kind, name: str, rule: int) -> None:
    decision = Rules.parse(RULES).decide(who, verb, kind, name)
    assert (decision.allowed, decision.number) == (rule > 0, rule), decision.reason


def test_a_decision_says_why() -> None:
    rules = Rules.parse(RULES)
    assert rules.decide("ann", Verb.ADMIN, GROUP, "orders").reason == (
        "rule 3 allows it: ann may admin: groups orders"
    )
    assert rules.decide("bob", Verb.ALTER, TOPIC, "t").reason == (
        "no rule for 'bob' allows alter of topic 't'; rules that name it: 2"
    )
    alone = Rules.parse(RULES.replace(b'who = ["*"]', b'who = ["x"]'))
    assert alone.decide("", Verb.ALTER, TOPIC, "t").reason == "no rule is for a caller without an identity"


def one(**fields: str) -> bytes:
    usual = {"who": '["a"]', "verbs": '["join"]', "groups": '["g"]'}
    lines = [f"{name} = {value}" for name, value in (usual | fields).items() if value]
    return "\n".join(["[[rule]]", *lines]).encode()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "rule: there is none; each begins with [[rule]]"),
        (b"rule = []", "rule: there is none; each begins with [[rule]]"),
        (b"[rule]", "rule: each begins with [[rule]]"),
        (b"[[rule]\n", "the file is not TOML: "),
        (b"\xff", "the file is not TOML: "),
        (b"x = " + b"[" * 5_000, "the file is not TOML: "),
        (b"rules = 1\n" + one(), "rules: there is no such field"),
        (one(who=""), "rule 1: who: field required"),
        (one(who="[]"), "rule 1: who: it names nothing"),
        (one(who='[""]'), "rule 1: who[0]: string should have at least 1 character"),
        (one(who='"a"'), "rule 1: who: input should be a valid list"),
        (one(who='["a", 1]'), "rule 1: who[1]: input should be a valid string"),
        (one(who='["a*b"]'), "rule 1: who[0]: 'a*b' has a * that is not at its end"),
        (one(groups='["g", "*g"]'), "rule 1: groups[1]: '*g' has a * that is not at its end"),
        (one(who=f'["{"x" * 1_025}"]'), "rule 1: who[0]: string should have at most 1024 characters"),
        (one(groups=f'["{"x" * 256}"]'), "rule 1: groups[0]: string should have at most 255 characters"),
        (one(verbs='["join", "craete"]'), "rule 1: verbs[1]: 'craete' is none of a group, which has join, "),
        (one(verbs='["alter"]'), "rule 1: verbs[0]: 'alter' is none of a group, which has join, commit, "),
        (one(groups=""), "rule 1: has one of groups, topics and cluster = true, neither none nor several"),
        (one(topics='["t"]'), "rule 1: has one of groups, topics and cluster = true"),
        (one(group='["t"]'), "rule 1: group: there is no such field"),
        (one() + b"\n" + one(verbs="[]"), "rule 2: verbs: it names nothing"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_rule_and_field(text: bytes, problem: str) -> None:
    with pytest.raises(AccessError) as caught:
        Rules.parse(text)
    assert caught.value.problems[0].startswith(problem)


def test_a_file_is_bounded() -> None:
    names = ", ".join(f'"g{number}"' for number in range(MAX_PATTERNS))
    Rules.parse(one(groups=f"[{names}]"))
    with pytest.raises(AccessError, match=r"rule 1: groups: list should have at most 100 items"):
        Rules.parse(one(groups=f'[{names}, "one-more"]'))
    assert len(Rules.parse(b"\n".join([one()] * MAX_RULES))) == MAX_RULES
    with pytest.raises(AccessError, match=r"rule: list should have at most 1000 items"):
        Rules.parse(b"\n".join([one()] * (MAX_RULES + 1)))
    full = one(groups=f"[{names}]")  # with who, 101 names
    rules = MAX_ALL_PATTERNS // (MAX_PATTERNS + 1)
    Rules.parse(b"\n".join([full] * rules))
    with pytest.raises(AccessError, match=r"the rules list 10,100 names together, at most 10,000"):
        Rules.parse(b"\n".join([full] * (rules + 1)))


PUBLIC: list[FileDescriptor] = [
    module.DESCRIPTOR
    for module in (
        common_pb2,
        coordinator_pb2,
        discovery_pb2,
        group_conversion_pb2,
        group_settings_pb2,
        incremental_pb2,
        quotas_pb2,
        session_pb2,
    )
]


def test_every_method_of_every_public_service_is_in_the_table() -> None:
    methods = {
        f"{service.full_name}/{method.name}"
        for file in PUBLIC
        for service in file.services_by_name.values()
        for method in service.methods
    }
    assert methods == set(NEEDS)
    assert [name for name, need in NEEDS.items() if need is EACH_FRAME] == [
        "muster.v1.GroupSessionService/Session"
    ]
    assert all(need.verb in VERBS[need.kind] for need in NEEDS.values() if need is not None)
    folder = Path(coordinator_pb2.__file__).parent  # no file of the package was forgotten here
    assert {f"{file.stem.removesuffix('_pb2')}.proto" for file in folder.glob("*_pb2.py")} == {
        Path(file.name).name for file in PUBLIC
    }


def rules_file(folder: Path, text: bytes = RULES) -> Path:
    file = folder / "access.toml"
    file.write_bytes(text)
    return file


def test_without_a_file_everything_is_allowed() -> None:
    nothing = Access(AccessSettings())
    assert (nothing.on, nothing.allows("", Verb.ADMIN, CLUSTER)) == (False, True)


def test_a_process_does_not_start_with_a_file_that_is_wrong(tmp_path: Path) -> None:
    file = rules_file(tmp_path, one(verbs='["x"]'))
    with pytest.raises(SettingsError, match=r"MUSTER_ACCESS_FILE='.*access.toml': rule 1: verbs\[0\]"):
        Access(AccessSettings(file=file))
    file.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(SettingsError, match=r"MUSTER_ACCESS_FILE='.*': the file is larger than 1,048,576"):
        Access(AccessSettings(file=file))
    file.unlink()
    with pytest.raises(SettingsError, match="No such file"):
        Access(AccessSettings(file=file))


async def test_a_changed_file_counts_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    file = rules_file(tmp_path)
    access = Access(AccessSettings(file=file))
    assert access.allows(WORKER, Verb.JOIN, GROUP, "orders")
    assert not access.allows("bob", Verb.JOIN, GROUP, "orders")
    assert access.refused == {Verb.JOIN: 1}
    assert not await access.renew()

    with capture_logs() as lines:
        file.write_bytes(one(verbs='["x"]') + b"\n" + one(who="[]"))
        assert not await access.renew()
        assert not await access.renew()
    assert [line["event"] for line in lines] == ["access_rules_not_used"]
    first, second = lines[0]["problem"].split("; ")
    assert "rule 1: verbs[0]: 'x' is none of a group" in first
    assert second.endswith("rule 2: who: it names nothing")
    assert (access.is_current, len(access)) == (False, 4)
    assert access.allows(WORKER, Verb.JOIN, GROUP, "orders")

    file.write_bytes(one(who='["bob"]', groups='["orders"]'))
    with capture_logs() as lines:
        assert await access.renew()
    changed = lines[-1]
    assert (changed["event"], changed["action"], changed["what"]) == ("audit", "rules_changed", ["rules:1"])
    assert changed["sha256"] == sha256(file.read_bytes()).hexdigest()
    assert (access.is_current, len(access)) == (True, 1)
    assert access.allows("bob", Verb.JOIN, GROUP, "orders")
    assert not access.allows(WORKER, Verb.JOIN, GROUP, "orders")

    file.unlink()
    assert not await access.renew()
    assert (access.is_current, len(access)) == (False, 1)
    assert access.allows("bob", Verb.JOIN, GROUP, "orders")


NAMES = ["", "a", "ab", "abc", "abd", "ac", "b", "b*", "ba"]
PATTERNS = ["a", "ab", "abc", "b", "*", "a*", "ab*", "abc*", "ac*", "b*"]


@pytest.mark.parametrize("seed", range(200))
def test_what_is_granted_is_what_the_rules_decide(seed: int) -> None:
    """Whatever the names and beginnings, also where one begins with another."""
    chance = Random(seed)
    lines = []
    for _ in range(chance.randrange(1, 5)):
        kind = chance.choice([GROUP, TOPIC, CLUSTER])
        about = "cluster = true" if kind is CLUSTER else f"{kind}s = {chance.sample(PATTERNS, 3)}"
        verbs = list(map(str, chance.sample(VERBS[kind], chance.randrange(1, 3))))
        lines += ["[[rule]]", f"who = {chance.sample(PATTERNS, 2)}", f"verbs = {verbs}", about]
    rules = Rules.parse("\n".join(lines).encode())
    for who in NAMES:
        granted = rules.granted(who)
        for kind, verbs_of in VERBS.items():
            for verb in verbs_of:
                for name in NAMES if kind is not CLUSTER else [""]:
                    assert ((verb, kind, name) in granted) == rules.decide(who, verb, kind, name).allowed


def test_of_many_things_that_a_call_must_not_the_first_are_told_and_all_counted(tmp_path: Path) -> None:
    access = Access(AccessSettings(file=rules_file(tmp_path)))
    keeper = access.trail.keeper = Keeper("c")
    names = [f"orders-{number}" for number in range(5)] + [f"other-{number}" for number in range(10_000)]
    with capture_logs() as lines:
        allowed = access.allows_each(WORKER, Verb.JOIN, GROUP, names, "h")
    assert allowed == [True] * 5 + [False] * 10_000
    assert access.refused == {Verb.JOIN: 10_000}
    assert len(lines) <= TOLD_MAX + 1
    events = list(keeper._kinds[False].events.values())
    assert [event.what[0] for event in events[:2]] == ["group:other-0", "group:other-1"]
    assert (len(events), sum(event.count for event in events)) == (TOLD_MAX + 1, 10_000)
    assert events[-1].reason == "9,980 more that the call names"


async def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed, "_IDENTITIES_MAX", 5)
    access = Access(AccessSettings(file=rules_file(tmp_path)))
    for number in range(100):
        assert not access.allows(f"caller-{number}", Verb.JOIN, GROUP, f"g{number}")
        assert access.allows(WORKER, Verb.JOIN, GROUP, f"orders-{number}")
        assert len(access._granted) <= 5


def test_a_list_that_leaves_something_out_counts_as_no_refusal(tmp_path: Path) -> None:
    access = Access(AccessSettings(file=rules_file(tmp_path)))
    assert access.sees(WORKER, GROUP, "orders")
    assert not access.sees(WORKER, GROUP, "payments")
    assert not access.refused
