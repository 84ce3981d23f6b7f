"""The file of rights: rules in TOML, and what they decide."""

import tomllib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from muster_runtime.rpc._problems import problems_of
from muster_runtime.rpc.access.verbs import VERBS, Kind, Verb

MAX_RULES = 1_000
MAX_PATTERNS = 100
"""Names that one rule may list in one field."""
MAX_ALL_PATTERNS = 10_000
"""Names of all rules together."""
MAX_WHO, MAX_NAME = 1_024, 255
"""Characters of the name of an identity, and of a group or topic."""
_EVERYTHING = ("*",)


class AccessError(Exception):
    """A file of rights cannot be used.

    Attributes:
        problems: one sentence for each, with rule and field.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


class Rule(BaseModel):
    """One rule: these identities may do this with these groups, or topics, or the cluster.

    Names are exact, or prefixes with a `*` at the end.

    Attributes:
        who: names of identities.
        verbs: what they may do.
        groups: of a rule about groups.
        topics: of a rule about topics.
        cluster: whether it is a rule about the cluster.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)

    who: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=MAX_WHO)]],
        Field(min_length=1, max_length=MAX_PATTERNS),
    ]
    verbs: Annotated[list[str], Field(min_length=1, max_length=len(Verb))]
    groups: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME)]],
        Field(min_length=1, max_length=MAX_PATTERNS),
    ] = []
    topics: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME)]],
        Field(min_length=1, max_length=MAX_PATTERNS),
    ] = []
    cluster: bool = False

    @model_validator(mode="after")
    def _fits(self) -> "Rule":
        if sum((bool(self.groups), bool(self.topics), self.cluster)) != 1:
            raise ValueError("has one of groups, topics and cluster = true, neither none nor several")
        may = VERBS[self.kind]
        for place, verb in enumerate(self.verbs):
            if verb not in may:
                known = ", ".join(may)
                raise ValueError(f"verbs[{place}]: {verb!r} is none of a {self.kind}, which has {known}")
        for field, patterns in (("who", self.who), ("groups", self.groups), ("topics", self.topics)):
            for place, pattern in enumerate(patterns):
                if "*" in pattern[:-1]:
                    raise ValueError(f"{field}[{place}]: {pattern!r} has a * that is not at its end")
        return self

    @property
    def kind(self) -> Kind:
        """What it is about."""
        if self.cluster:
            return Kind.CLUSTER
        return Kind.GROUP if self.groups else Kind.TOPIC

    @property
    def patterns(self) -> int:
        """How many names it lists."""
        return len(self.who) + len(self.groups) + len(self.topics)

    def is_for(self, who: str) -> bool:
        """Whether it gives rights to an identity."""
        return _matches(who, self.who)

    def gives(self, verb: Verb, kind: Kind, name: str) -> bool:
        """Whether it gives a right to whom it is for."""
        return _matches(name, self.names_of(verb, kind))

    def names_of(self, verb: Verb, kind: Kind) -> Sequence[str]:
        """With what it lets do something whom it is for: names, and beginnings with a `*`."""
        if self.cluster and Verb.ADMIN in self.verbs:
            return _EVERYTHING
        if self.kind is not kind:
            return ()
        if verb is not Verb.DESCRIBE and verb not in self.verbs and Verb.ADMIN not in self.verbs:
            return ()
        return self.groups or self.topics or _EVERYTHING

    def __str__(self) -> str:
        """The rule in one line."""
        about = "the cluster" if self.cluster else f"{self.kind}s {', '.join(self.groups or self.topics)}"
        return f"{', '.join(self.who)} may {', '.join(self.verbs)}: {about}"


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(
        name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern for pattern in patterns
    )


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether somebody may do something, and why.

    Attributes:
        allowed: whether it is.
        number: of the rule that allows it, from 1; 0: none does.
        reason: for people, in one sentence without a full stop.
    """

    allowed: bool
    number: int
    reason: str


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    # A file that was cut off before its first rule would refuse everybody.
    rule: Annotated[list[Rule], Field(min_length=1, max_length=MAX_RULES)]


class Rules:
    """The rules of a file. What none of them allows is refused.

    Args:
        rules: in the order of the file.
    """

    def __init__(self, rules: Sequence[Rule] = ()) -> None:
        self._rules = tuple(enumerate(rules, 1))

    def __len__(self) -> int:
        """How many there are."""
        return len(self._rules)

    @classmethod
    def parse(cls, text: bytes) -> "Rules":
        """Reads the content of a file.

        Raises:
            AccessError: it names each rule and field that is wrong.
        """
        try:
            content = tomllib.loads(text.decode())
        except (ValueError, RecursionError) as error:
            raise AccessError([f"the file is not TOML: {error}"]) from None
        try:
            rules = _File.model_validate(content).rule
        except ValidationError as error:
            raise AccessError(problems_of(error, "rule")) from None
        patterns = sum(rule.patterns for rule in rules)
        if patterns > MAX_ALL_PATTERNS:
            raise AccessError([f"the rules list {patterns:,} names together, at most {MAX_ALL_PATTERNS:,}"])
        return cls(rules)

    def granted(self, who: str) -> "Granted":
        """What they give to an identity."""
        return Granted([rule for _, rule in self._of(who)])

    def _of(self, who: str) -> Sequence[tuple[int, Rule]]:
        """Those that are for an identity, with their numbers."""
        return [(number, rule) for number, rule in self._rules if rule.is_for(who)]

    def decide(self, who: str, verb: Verb, kind: Kind, name: str = "") -> Decision:
        """Whether an identity may do something.

        Args:
            who: name of the identity; empty: it has proved none.
            verb: what it does.
            kind: with what.
            name: of the group or topic.
        """
        about = "the cluster" if kind is Kind.CLUSTER else f"{kind} {name!r}"
        mine = self._of(who)
        for number, rule in mine:
            if rule.gives(verb, kind, name):
                return Decision(True, number, f"rule {number} allows it: {rule}")
        whom = repr(who) if who else "a caller without an identity"
        if not mine:
            return Decision(False, 0, f"no rule is for {whom}")
        numbers = ", ".join(str(number) for number, _ in mine[:10])
        more = ", …" if len(mine) > 10 else ""
        reason = f"no rule for {whom} allows {verb} of {about}; rules that name it: {numbers}{more}"
        return Decision(False, 0, reason)


class Granted:
    """What rules give, in a microsecond however many names they list: a call may ask ten thousand times.

    Args:
        rules: those that are for one identity.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._names: dict[tuple[Verb, Kind], _Names] = {}

    def __contains__(self, right: tuple[Verb, Kind, str]) -> bool:
        """Whether a right is given: what is done, with what, and the name of that."""
        verb, kind, name = right
        names = self._names.get((verb, kind))
        if names is None:
            names = self._names[verb, kind] = _Names(
                pattern for rule in self._rules for pattern in rule.names_of(verb, kind)
            )
        return name in names


class _Names:
    """Names and beginnings of names. Of the beginnings none begins with another, so that one at most can fit.

    Args:
        patterns: with a `*` at the end of those that are beginnings.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        names, beginnings = set[str](), set[str]()
        for pattern in patterns:
            (beginnings if pattern.endswith("*") else names).add(pattern.removesuffix("*"))
        self._names = frozenset(names)
        self._beginnings: list[str] = []
        for beginning in sorted(beginnings):
            if not self._beginnings or not beginning.startswith(self._beginnings[-1]):
                self._beginnings.append(beginning)

    def __contains__(self, name: str) -> bool:
        if name in self._names:
            return True
        place = bisect_right(self._beginnings, name)
        return place > 0 and name.startswith(self._beginnings[place - 1])
