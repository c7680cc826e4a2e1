"""JSON schemas as grammars for llama.cpp (GBNF), so that an answer can be nothing but JSON of that form.

llama-cpp-python's own converter isn't used: it lets raw line breaks into strings, takes two references with the same last name for one, and
leaves out what it doesn't know. Here a keyword is held to, or refused by name. A grammar may allow less than its schema does (numbers of at
most 15 digits before and after the point, no property that isn't named beside those that are), but never more, except that alternatives of
``oneOf`` are taken as those of ``anyOf``.

Source of the form of rules: llama.cpp, grammars/README.md and common/json-schema-to-grammar.cpp.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import ceil, floor
from typing import Any
from urllib.parse import unquote

from streamco.engines.llamacpp.schema_forms import Forms, refused
from streamco.errors import MAX_NAME, ConfigError, shorten

__all__ = ["grammar_of", "schema_grammar"]

MAX_CHARACTERS = 100_000  # of a schema as JSON
MAX_DEPTH = 50  # of a schema, references included: llama.cpp's parser and the conversion recurse
MAX_VALUES = 500  # of an enum
MAX_ITEMS = 2000  # of minItems and the like: llama.cpp refuses more repetitions
MAX_REPETITIONS = 20_000  # of all of them in a schema: llama.cpp writes a rule for each
MAX_RULES = 10_000
_MAX_INDEX_DIGITS = 6  # Python refuses to read very long numbers
_NO_WORDS: dict[str, Any] = {}

_BUILTIN = r"""
value ::= object | array | string | number | boolean | null
object ::= "{" ws (pair ("," ws pair)*)? "}"
pair ::= string ":" ws value ws
array ::= "[" ws (value ws ("," ws value ws)*)? "]"
string ::= "\"" char* "\""
char ::= [^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" ([0-9a-cA-Ce-fE-F] hex | [dD] [0-7]) hex hex)
hex ::= [0-9a-fA-F]
integer ::= "0" | "-"? [1-9] [0-9]{0,14}
number ::= "-"? unsigned
unsigned ::= ("0" | [1-9] [0-9]{0,14}) ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,2})?
boolean ::= "true" | "false"
null ::= "null"
ws ::= | " " | "\n" [ \t]{0,20}
year ::= [1-9] [0-9]{3} | "0" ([1-9] [0-9]{2} | "0" ([1-9] [0-9] | "0" [1-9]))
date ::= year "-" (("0" [13578] | "1" [02]) "-" (day | "29" | "30" | "31") | ("0" [469] | "11") "-" (day | "29" | "30") | "02-" day)
day ::= "0" [1-9] | "1" [0-9] | "2" [0-8]
time ::= ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{1,6})? ("Z" | [+-] ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9])
uuid ::= hex{8} "-" hex{4} "-" hex{4} "-" hex{4} "-" hex{12}
"""
_FORMATS = {"date": "date", "time": "time", "date-time": 'date "T" time', "uuid": "uuid"}

_FORMAT_KEYS: Mapping[str, Sequence[str]] = {
    "text": ("type",),
    "json_object": ("type", "schema"),
    "json_schema": ("type", "json_schema"),
}  # of a response_format
_SCHEMA_KEYS = ("name", "description", "schema", "strict")
_ANNOTATIONS = frozenset(
    {
        *("$comment", "$id", "$schema", "$defs", "definitions", "default", "deprecated", "description", "discriminator", "example"),
        *("examples", "readOnly", "title", "writeOnly"),
    }
)
_KEYWORDS: Mapping[str, frozenset[str]] = {
    "object": frozenset({"additionalProperties", "properties", "required"}),
    "array": frozenset({"items", "maxItems", "minItems", "prefixItems"}),
    "string": frozenset({"format", "maxLength", "minLength"}),
    "integer": frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"}),
    "number": frozenset({"minimum"}),
    "boolean": frozenset(),
    "null": frozenset(),
}
_ALL_KEYWORDS = frozenset({"$ref", "allOf", "anyOf", "const", "enum", "oneOf", "type"}).union(*_KEYWORDS.values())


def grammar_of(response_format: object) -> str | None:
    """Return the grammar of a request's ``response_format``; None: any text may be written.

    Args:
        response_format: None, or as at OpenAI: ``{"type": "text"}``, ``{"type": "json_object"}``, or ``{"type": "json_schema",
            "json_schema": {"name": ..., "schema": ...}}``. ``strict`` makes no difference: the schema is always held to. As at llama.cpp,
            ``{"type": "json_object", "schema": ...}`` may have a schema, too.

    Raises:
        ConfigError: it is something else or has an unknown key, or the schema can't be held to.
    """
    try:
        return _grammar_of(response_format)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"response_format: expected JSON that can be read, got {exc}") from exc


def _grammar_of(response_format: object) -> str | None:
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    known = _FORMAT_KEYS.get(kind) if isinstance(kind, str) else None
    if not isinstance(response_format, Mapping) or known is None:
        wanted = "None or a type of text, json_object or json_schema"
        raise ConfigError(f"response_format: expected {wanted}, got {shorten(repr(response_format), MAX_NAME)}")
    _check_keys("response_format", response_format, known)
    if kind == "text":
        return None
    if kind == "json_object":
        schema = response_format.get("schema")
        return "root ::= object" + _BUILTIN if schema in (None, {}) else schema_grammar(schema)
    given = response_format.get("json_schema")
    if not isinstance(given, Mapping) or not isinstance(given.get("schema"), Mapping):
        raise ConfigError(f"response_format: json_schema: expected an object with a schema, got {shorten(repr(given), MAX_NAME)}")
    _check_keys("response_format: json_schema", given, _SCHEMA_KEYS)
    return schema_grammar(given["schema"])


def _check_keys(where: str, given: Mapping[Any, Any], known: Sequence[str]) -> None:
    """Check that no key but the known ones has a value: it may ask for something that would not be kept to."""
    unknown = sorted(shorten(str(key), MAX_NAME) for key, value in given.items() if key not in known and value is not None)
    if unknown:
        raise ConfigError(f"{where}: expected {', '.join(known)}, got {unknown[0]}")


def schema_grammar(schema: object) -> str:
    """Return the grammar of a JSON schema; its first rule is ``root``.

    Raises:
        ConfigError: the schema can't be held to: it has an unknown keyword, refers to something outside, or is too large.
    """
    try:
        text = json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise ConfigError(f"response_format: schema: expected JSON, got {exc}") from exc
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"response_format: schema: expected at most {MAX_CHARACTERS} characters, got {len(text)}")
    return _grammar_of_text(text)


@lru_cache(maxsize=16)  # a request asks twice: whether a device can hold to the schema, and to hold to it
def _grammar_of_text(text: str) -> str:
    converter = _Converter(json.loads(text))
    root = converter.visit(converter.schema, "#", 0)
    converter.forms.check(root, converter.rules)
    return "\n".join([f"root ::= {root}", *(f"{name} ::= {rule}" for name, rule in converter.rules.items())]) + _BUILTIN


class _Converter:
    """Makes the rules of one schema.

    Each value has a rule of its own, so that rules stay flat and what is referred to twice is written once.
    """

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self.rules: dict[str, str] = {}
        self.forms = Forms()
        self._references: dict[int, str] = {}  # by the identity of what is referred to, which the schema keeps alive
        self._repetitions = 0

    def visit(self, schema: Any, path: str, depth: int) -> str:
        """Return the name of the rule for a schema."""
        if depth > MAX_DEPTH:
            raise refused(path, f"at most {MAX_DEPTH} levels", "more")
        if schema is True:
            return "value"
        if not isinstance(schema, dict):
            raise refused(path, "an object", schema)
        words = {name: value for name, value in schema.items() if name not in _ANNOTATIONS}
        unknown = sorted(words.keys() - _ALL_KEYWORDS)
        if unknown:
            raise refused(path, f"keywords that a device can hold to ({', '.join(sorted(_ALL_KEYWORDS))})", unknown[0])
        for name, handle in (("$ref", self._refer), ("anyOf", self._union), ("oneOf", self._union), ("allOf", self._single)):
            if name in words:
                if len(words) > 1:
                    raise refused(path, f"no other keyword beside {name}", ", ".join(sorted(words.keys() - {name})))
                return handle(words[name], f"{path}/{name}", depth + 1)
        if "const" in words or "enum" in words:
            return self._literals(words, path)
        return self._typed(words, path, depth)

    def _rule(self, text: str, begins: Sequence[str] = ()) -> str:
        """Return the name of a new rule."""
        if len(self.rules) >= MAX_RULES:
            raise ConfigError(f"response_format: schema: expected at most {MAX_RULES} values and properties, references included, got more")
        name = f"r{len(self.rules)}"
        self.rules[name] = text
        if begins:
            self.forms.add_alternatives(name, begins)
        return name

    def _refer(self, reference: Any, path: str, depth: int) -> str:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise refused(path, "a reference inside the schema (#/...)", reference)
        found = self._find(reference, path)
        if id(found) not in self._references:
            name = self._references[id(found)] = self._rule("")
            target = self.visit(found, reference, depth)
            self.rules[name] = target
            self.forms.add_alternatives(name, [target])
        return self._references[id(found)]

    def _find(self, reference: str, path: str) -> Any:
        found = self.schema
        for part in reference.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isdecimal() and len(key) <= _MAX_INDEX_DIGITS and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, dict) and key in found:
                found = found[key]
            else:
                raise refused(path, "a reference to something in the schema", reference)
        return found

    def _union(self, options: Any, path: str, depth: int) -> str:
        if not isinstance(options, list) or not options:
            raise refused(path, "a list of schemas", options)
        names = [self.visit(option, f"{path}/{index}", depth) for index, option in enumerate(options)]
        return self._alternatives(names)

    def _alternatives(self, names: Sequence[str]) -> str:
        distinct = list(dict.fromkeys(names))
        return distinct[0] if len(distinct) == 1 else self._rule(" | ".join(distinct), distinct)

    def _single(self, parts: Any, path: str, depth: int) -> str:
        if not isinstance(parts, list) or len(parts) != 1:
            raise refused(path, "a list of one schema", parts)
        return self.visit(parts[0], f"{path}/0", depth)

    def _literals(self, words: Mapping[str, Any], path: str) -> str:
        others = words.keys() - {"const", "enum", "type"}
        if others:
            raise refused(path, "no other keyword but type beside const and enum", ", ".join(sorted(others)))
        values = words.get("enum", [words.get("const")])
        if not isinstance(values, list) or len(values) > MAX_VALUES:
            raise refused(f"{path}/enum", f"a list of at most {MAX_VALUES} values", values)
        if "const" in words:
            values = [value for value in values if _is_equal(value, words["const"])]
        if "type" in words:
            types = _types(words["type"], path)
            values = [value for value in values if any(_is_of(value, each) for each in types)]
        if not values:
            raise refused(path, "a value that is allowed", "none")
        texts = sorted({_text_of(value) for value in values})
        opens = {text[0] if text[0] in '{["tfn' else "0" for text in texts}
        return self.forms.add_value(self._rule(_trie(texts)), path, "".join(sorted(opens)))

    def _typed(self, words: Mapping[str, Any], path: str, depth: int) -> str:
        types = _types(words["type"], path) if "type" in words else [each for each in _KEYWORDS if words.keys() & _KEYWORDS[each]][:1]
        if not types:
            return "value"
        if "number" in types:  # whole numbers are among them, and keep to no other bounds
            types = [each for each in types if each != "integer"]
        foreign = words.keys() - {"type"}.union(*(_KEYWORDS[each] for each in types))
        if foreign:
            raise refused(path, f"keywords of the type {' or '.join(types)}", ", ".join(sorted(foreign)))
        return self._alternatives([self._of_type(each, words, path, depth) for each in types])

    def _of_type(self, kind: str, words: Mapping[str, Any], path: str, depth: int) -> str:
        words = {name: value for name, value in words.items() if name in _KEYWORDS[kind]}
        if not words:
            return kind
        if kind == "object":
            return self._object(words, path, depth)
        if kind == "array":
            return self._array(words, path, depth)
        if kind == "string":
            return self.forms.add_value(self._string(words, path), path, '"')
        if kind == "integer":
            return self.forms.add_value(self._rule(_integers(*_bounds(words, path))), path, "0")
        if words != {"minimum": 0}:
            raise refused(f"{path}/minimum", "0 or none with the type number", words["minimum"])
        return "unsigned"

    def _string(self, words: Mapping[str, Any], path: str) -> str:
        if "format" in words:
            known = words["format"]
            if not isinstance(known, str) or known not in _FORMATS or len(words) > 1:
                got = known if len(words) == 1 else ", ".join(sorted(words))
                raise refused(f"{path}/format", f"a format of {', '.join(_FORMATS)}, without a length", got)
            return self._rule(rf'"\"" {_FORMATS[known]} "\""')
        low, high = _limits(words, path, "minLength", "maxLength")
        return self._rule(rf'"\"" char{self._times(low, high, path)} "\""')

    def _times(self, low: int, high: int | None, path: str) -> str:
        self._repetitions += low if high is None else high
        if self._repetitions > MAX_REPETITIONS:
            wanted = f"at most {MAX_REPETITIONS} of minItems, maxItems, minLength and maxLength together"
            raise refused(path, wanted, str(self._repetitions))
        return f"{{{low},{'' if high is None else high}}}"

    def _array(self, words: Mapping[str, Any], path: str, depth: int) -> str:
        low, high = _limits(words, path, "minItems", "maxItems")
        if "prefixItems" in words:
            return self._tuple(words, path, depth, low, high)
        item = self.visit(words.get("items", _NO_WORDS), f"{path}/items", depth + 1)
        if high == 0:
            return self.forms.add_value(self._rule('"[" ws "]"'), path, "[")
        more = self._rule(f'"," ws {item} ws')
        items = f"{item} ws {more}{self._times(max(0, low - 1), None if high is None else high - 1, path)}"
        return self.forms.add_value(self._rule(f'"[" ws {items if low else f"({items})?"} "]"'), path, "[", [item])

    def _tuple(self, words: Mapping[str, Any], path: str, depth: int, low: int, high: int | None) -> str:
        """Return the rule of an array with exactly the items that are named."""
        parts = words["prefixItems"]
        if not isinstance(parts, list) or not parts or not isinstance(words.get("items", False), bool | dict):
            raise refused(f"{path}/prefixItems", "a list of schemas", parts)
        if not low <= len(parts) or (high is not None and high < len(parts)):
            raise refused(path, f"room for the {len(parts)} items of prefixItems", f"minItems {low}, maxItems {high}")
        items = [self.visit(part, f"{path}/prefixItems/{index}", depth + 1) for index, part in enumerate(parts)]
        return self.forms.add_value(self._rule('"[" ws ' + ' ws "," ws '.join(items) + ' ws "]"'), path, "[", items)

    def _object(self, words: Mapping[str, Any], path: str, depth: int) -> str:
        properties, required = words.get("properties", _NO_WORDS), words.get("required", [])
        if not isinstance(properties, dict):
            raise refused(f"{path}/properties", "an object", properties)
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise refused(f"{path}/required", "a list of names", required)
        others = words.get("additionalProperties", True)
        unnamed = [name for name in required if name not in properties]
        if unnamed and others is False:
            raise refused(f"{path}/required", "names of properties", unnamed[0])
        properties = {**properties, **dict.fromkeys(unnamed, others)}
        if properties:
            return self._properties(properties, set(required), path, depth)
        if others is False:
            return self.forms.add_value(self._rule('"{" ws "}"'), path, "{")
        value = self.visit(others, f"{path}/additionalProperties", depth + 1)
        pair = self._rule(f'string ":" ws {value} ws')
        return self.forms.add_value(self._rule(f'"{{" ws ({pair} ("," ws {pair})*)? "}}"'), path, "{", [value])

    def _properties(self, properties: Mapping[str, Any], required: set[str], path: str, depth: int) -> str:
        """Return the rule of an object with these properties, in this order; those that aren't required may be left out."""
        first = ""  # rule of what may follow if nothing was written before
        rest = ""  # and if something was
        values = []
        for name, schema in reversed(list(properties.items())):
            value = self.visit(schema, f"{path}/properties/{name}", depth + 1)
            values.append(value)
            pair = f"{_literal(_text_of(name) + ':')} ws {value} ws"
            here = self._rule(f"{pair} {rest}".strip())
            if name in required:
                first, rest = here, self._rule(f'"," ws {here}')
            else:
                first = self._rule(f"{here} | {first}", [here, first]) if first else self._rule(f"({here})?", [here])
                rest = self._rule(f'("," ws {pair})? {rest}'.strip(), [here, rest] if rest else [here])
        return self.forms.add_value(self._rule(f'"{{" ws {first} "}}"'), path, "{", values)


def _types(given: Any, path: str) -> list[str]:
    types = given if isinstance(given, list) else [given]
    if not types or not all(isinstance(each, str) and each in _KEYWORDS for each in types):
        raise refused(f"{path}/type", f"a type of {', '.join(_KEYWORDS)}", given)
    return list(dict.fromkeys(types))


def _is_of(value: Any, kind: str) -> bool:
    """Return True if a value is of a type of JSON schemas."""
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, int | float):
        return kind == "number" or (kind == "integer" and (isinstance(value, int) or value.is_integer()))
    known: Mapping[type, str] = {dict: "object", list: "array", str: "string", type(None): "null"}
    return known[type(value)] == kind


def _is_equal(one: Any, other: Any) -> bool:
    return _text_of(one) == _text_of(other)


def _text_of(value: Any) -> str:
    """Return a value as JSON."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate has no bytes
        return json.dumps(value, separators=(",", ":"))
    return text


def _literal(text: str) -> str:
    """Return a grammar's form of a text without line breaks."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _common_prefix(one: str, other: str) -> str:
    count = next((index for index, (left, right) in enumerate(zip(one, other, strict=False)) if left != right), min(len(one), len(other)))
    return one[:count]


def _trie(words: Sequence[str]) -> str:
    """Return an expression for sorted words that tries each beginning only once."""
    groups: dict[str, list[str]] = {}
    for word in words:
        groups.setdefault(word[:1], []).append(word)
    ends_here = groups.pop("", None) is not None
    parts = []
    for group in groups.values():
        prefix = _common_prefix(group[0], group[-1])
        rests = [word[len(prefix) :] for word in group]
        parts.append(_literal(prefix) + (f" {_trie(rests)}" if any(rests) else ""))
    expression = " | ".join(parts)
    return f"({expression})?" if ends_here else f"({expression})"


def _limits(words: Mapping[str, Any], path: str, low_name: str, high_name: str) -> tuple[int, int | None]:
    for name in (low_name, high_name):
        value = words.get(name, 0)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_ITEMS:
            raise refused(f"{path}/{name}", f"a whole number from 0 to {MAX_ITEMS}", value)
    low, high = words.get(low_name, 0), words.get(high_name)
    if high is not None and high < low:
        raise refused(f"{path}/{high_name}", f"at least {low_name}, {low}", high)
    return low, high


_LARGEST = 10**15 - 1


def _bounds(words: Mapping[str, Any], path: str) -> tuple[int, int]:
    """Return the smallest and the largest whole number that is allowed."""
    for name, value in words.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _LARGEST:
            raise refused(f"{path}/{name}", f"a number from {-_LARGEST} to {_LARGEST}", value)
    low = max(ceil(words.get("minimum", -_LARGEST)), floor(words.get("exclusiveMinimum", -_LARGEST - 1)) + 1)
    high = min(floor(words.get("maximum", _LARGEST)), ceil(words.get("exclusiveMaximum", _LARGEST + 1)) - 1)
    if low > high:
        raise refused(path, "a range with a whole number in it", f"{low} to {high}")
    return low, high


def _integers(low: int, high: int) -> str:
    """Return an expression for the whole numbers of a range."""
    parts = []
    if low < 0:
        parts.append(f'"-" ({_digits(max(1, -high), -low)})')
    if high >= 0:
        parts.append(_digits(max(0, low), high))
    return " | ".join(parts)


def _digits(low: int, high: int) -> str:
    """Return an expression for the numbers of a range that begins at 0 or above."""
    parts = []
    for length in range(len(str(low)), len(str(high)) + 1):
        start = max(low, 10 ** (length - 1) if length > 1 else 0)
        parts.append(_same_length(str(start), str(min(high, 10**length - 1))))
    return " | ".join(parts)


def _same_length(low: str, high: str) -> str:
    """Return an expression for the numbers from one to another of as many digits."""
    count = len(low)
    if not count:
        return '""'
    if low == "0" * count and high == "9" * count:
        return f"[0-9]{{{count}}}"
    if low[0] == high[0]:
        return f'"{low[0]}" ({_same_length(low[1:], high[1:])})' if count > 1 else f'"{low}"'
    if count == 1:
        return f"[{low}-{high}]"
    first, last = int(low[0]), int(high[0])
    parts = [f'"{first}" ({_same_length(low[1:], "9" * (count - 1))})']
    if last - first > 1:
        parts.append(f"[{first + 1}-{last - 1}] [0-9]{{{count - 1}}}")
    parts.append(f'"{last}" ({_same_length("0" * (count - 1), high[1:])})')
    return " | ".join(parts)
