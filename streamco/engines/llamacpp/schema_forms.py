"""How many ways llama.cpp keeps open while it reads a value, counted before it has a chance to hang.

llama.cpp tries all alternatives at once, and those that begin with the same ``{``, ``[`` or ``"`` part only later. A value inside
has its own ways for each of them, so they multiply along nesting: four objects that hold one another have 4^n at depth n.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator

from streamco.errors import MAX_NAME, ConfigError, shorten

__all__ = ["Forms", "refused"]

MAX_CHOICES = 100  # forms that a value can begin in, and ways that are open at once: llama.cpp tries each of them with each token
_BUILTIN = {"object": "{", "array": "[", "string": '"', "integer": "0", "number": "0", "unsigned": "0", "boolean": "t", "null": "n"}
_NESTING = "{["
_Node = tuple[str, str]  # a rule and what its value opens with


def refused(path: str, wanted: str, got: object) -> ConfigError:
    """Return the error of a schema that can't be held to, with what is wanted at a place in it."""
    where = f"at {shorten(path, MAX_NAME)}"
    shown = got if isinstance(got, str) else repr(got)
    return ConfigError(f"response_format: schema: expected {wanted} {where}, got {shorten(shown, MAX_NAME)}")


class Forms:
    """The forms of the values of a schema: which rule begins with which, and what their values open with and hold."""

    def __init__(self) -> None:
        self._begins: dict[str, list[str]] = {}  # rules that are alternatives of others, or may be the first value in them
        self._opens: dict[str, str] = {**_BUILTIN, "value": '{["0tfn'}  # each character that values open with; "0" stands for numbers
        self._holds: dict[str, list[str]] = {}  # rules of the values inside
        self._paths: dict[str, str] = {}

    def add_alternatives(self, name: str, names: Iterable[str]) -> None:
        """Note the rules that a rule may begin with."""
        self._begins[name] = list(names)

    def add_value(self, name: str, path: str, opens: str, holds: Iterable[str] = ()) -> str:
        """Note the characters that a rule's value opens with, and the rules of the values in it; returns the rule's name."""
        self._opens[name], self._holds[name], self._paths[name] = opens, list(dict.fromkeys(holds)), path
        return name

    def check(self, root: str, names: Iterable[str]) -> None:
        """Check that no value has too many forms, alone or along nesting, or none because it only refers to itself.

        Args:
            root: the rule of the whole answer.
            names: the rules, all but the built-in ones.

        Raises:
            ConfigError: one has.
        """
        counts = {"value": len(self._opens["value"])}
        for name in names:
            self._count(name, frozenset(), counts)
        self._check_nesting(root)

    def _count(self, name: str, above: frozenset[str], counts: dict[str, int]) -> int:
        if name in above:
            raise ConfigError("response_format: schema: expected references with something between them, got one that leads to itself")
        if name not in counts:
            counts[name] = sum(self._count(each, above | {name}, counts) for each in self._begins.get(name, ())) or 1
        if counts[name] > MAX_CHOICES:
            raise ConfigError(f"response_format: schema: expected at most {MAX_CHOICES} forms of a value, got more")
        return counts[name]

    def _check_nesting(self, root: str) -> None:
        """Check the most ways that are open along any path: the largest product of alternatives that open alike."""
        uses = self._uses(root)
        most = dict.fromkeys(uses, 1)
        inside: dict[_Node, _Node] = {}  # the value inside that a number comes from
        waiting = deque(uses)
        while waiting:
            node = waiting.popleft()
            for outer, factor in uses.get(node, ()):
                ways = factor * most[node]
                if ways > most.get(outer, 1):
                    most[outer], inside[outer] = ways, node
                    waiting.append(outer)
                if ways > MAX_CHOICES:
                    raise self._too_many(outer, inside)

    def _uses(self, root: str) -> dict[_Node, list[tuple[_Node, int]]]:
        """Return for each value those that it is in or an alternative of, and how many of its alternatives open alike."""
        uses: dict[_Node, list[tuple[_Node, int]]] = {}
        openings: dict[str, Counter[str]] = {}
        for name, held in [*self._holds.items(), ("", [root])]:  # the answer holds the root
            for inner in held:
                for opening, count in self._openings(inner, openings).items():
                    uses.setdefault((inner, opening), []).append(((name, self._opens.get(name, "")), count))
        for name, alternatives in self._begins.items():
            for inner in alternatives:
                for opening in _NESTING:
                    uses.setdefault((inner, opening), []).append(((name, opening), 1))
        return uses

    def _openings(self, name: str, known: dict[str, Counter[str]]) -> Counter[str]:
        """Return how many of a value's alternatives open with each character."""
        if name not in known:
            total = Counter(self._opens.get(name, ""))
            for each in self._begins.get(name, ()):
                total.update(self._openings(each, known))
            known[name] = total
        return known[name]

    def _too_many(self, node: _Node, inside: dict[_Node, _Node]) -> ConfigError:
        wanted = f"at most {MAX_CHOICES} ways to read a value, alternatives that begin alike multiplied along nesting,"
        chain = list(_chain(node, inside))
        path = next((self._paths[name] for name, _ in chain if name in self._paths), "#")
        return refused(path, wanted, "alternatives that refer back to themselves" if inside.get(chain[-1]) else "more")


def _chain(node: _Node, inside: dict[_Node, _Node]) -> Iterator[_Node]:
    """Yield a value and those inside, from which its number comes, up to the innermost or the one before a repetition."""
    seen: set[_Node] = set()
    found: _Node | None = node
    while found is not None and found not in seen:
        seen.add(found)
        yield found
        found = inside.get(found)
