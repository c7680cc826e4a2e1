from __future__ import annotations

import json
import sys
import threading
from time import thread_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.engines.llamacpp.grammar import TokenGrammar
from streamco.engines.llamacpp.json_schema import grammar_of, schema_grammar
from streamco.errors import ConfigError, EngineError
from tests.engines.llamacpp.vocabularies import SmallVocabulary


def fits(vocabulary: SmallVocabulary, schema: Any, text: str) -> bool:
    """Return True if a text is a whole answer."""
    try:
        grammar = vocabulary.grammar(schema_grammar(schema), text.encode())
    except EngineError:
        return False
    return bool(grammar.fits([vocabulary.end])[0])


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (
            PERSON,
            ['{"name":"Ada","age":36}', '{\n  "name": "Ada",\n  "age": 36,\n  "tags": ["x", "y"]\n}', '{"name":"","age":0,"tags":[]}'],
            ["{}", '{"age":36,"name":"Ada"}', '{"name":"Ada","age":-1}', '{"name":"Ada"}', '{"name":"Ada","age":36,"more":1}', '{"name":1'],
        ),
        ({"enum": ["a", "ab", 1, None, {"x": [1]}]}, ['"a"', '"ab"', "1", "null", '{"x":[1]}'], ['"', '"abc"', "true", "12"]),
        ({"const": 'say "\\n"\n'}, [json.dumps('say "\\n"\n')], ['"say "\\n"\n"']),
        ({"const": "\x01é"}, ['"\\u0001é"'], ['"\x01é"']),
        ({"type": "string"}, ['"a\\n\\u00e9é"'], ['"a\nb"', '"\\ud800"', '"\\x"', '"\x7f"']),
        ({"type": "string", "maxLength": 2}, ['""', '"éé"', '"\\nx"'], ['"abc"']),
        ({"type": "number"}, ["0", "-1.5", "1e10", "0.1E-5"], ["01", "1.", ".5", "+1", "-", "1e", "NaN"]),
        ({"type": "integer", "exclusiveMinimum": -2.5, "exclusiveMaximum": 3}, ["-2", "-1", "0", "2"], ["-3", "3", "1.0"]),
        ({"type": "integer", "minimum": 95, "maximum": 1203}, ["95", "99", "100", "999", "1203"], ["94", "1204", "9", "5000"]),
        ({"type": ["integer", "null"], "minimum": 5}, ["5", "null"], ["4", '"5"']),
        ({"type": ["integer", "number"], "minimum": 0}, ["5", "100.5", "0"], ["-4", "-0.5"]),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}, ["[1]", "[1, 2]"], ["[]", "[1,2,3]", '["1"]']),
        ({"type": "array", "maxItems": 0}, ["[]"], ["[1]"]),
        (
            {"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}], "items": False},
            ['["a", null]', '["a"]'],
            ["[null]", '["a",null,1]'],
        ),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, ["{}", '{"a": 1, "b":2}'], ['{"a": "1"}']),
        ({"properties": {}, "additionalProperties": False}, ["{}"], ['{"a":1}']),
        ({"required": ["x"]}, ['{"x":[1]}'], ["{}"]),
        (
            {"type": "string", "format": "date"},
            ['"0001-01-01"', '"2024-02-28"', '"2023-12-31"', '"2023-11-30"'],
            ['"0000-05-03"', '"2023-02-30"', '"2023-11-31"', '"2023-1-1"'],
        ),
        (
            {"type": "string", "format": "date-time"},
            ['"2024-02-28T10:00:00Z"'],
            ['"2024-02-28"', '"2024-02-28T25:00:00Z"', '"2024-02-28T10:00:60z"'],
        ),
        ({"anyOf": [{"type": "boolean"}, {"allOf": [{"const": "x"}]}]}, ["true", "false", '"x"'], ["null", '"y"']),
        ({"enum": ["x", 1, 2.0, 2.5, True], "type": "integer"}, ["1"], ['"x"', "2.5", "true"]),
        (
            {
                "$defs": {"a/b": {"type": "null"}, "b": {"const": 1}},
                "type": "array",
                "prefixItems": [{"$ref": "#/$defs/a~1b"}, {"$ref": "#/$defs/b"}],
            },
            ["[null,1]"],
            ["[1,1]", "[null,null]"],
        ),
        ({"type": "object", "properties": {"next": {"$ref": "#"}}}, ['{"next":{"next":{}}}'], ['{"next":1}']),
        ({}, ["1", '"x"', "[{}]"], ["x"]),
    ],
)
def test_a_schema_allows_its_values_and_no_others(vocabulary: SmallVocabulary, schema: Any, right: list[str], wrong: list[str]) -> None:
    assert [text for text in right if not fits(vocabulary, schema, text)] == []
    assert [text for text in wrong if fits(vocabulary, schema, text)] == []


LARGEST = {
    "type": "array",
    "minItems": 2000,
    "maxItems": 2000,
    "items": {"type": "array", "maxItems": 2000, "items": {"type": "string", "minLength": 1999, "maxLength": 2000}},
}
MANY = {"properties": {f"p{index}": True for index in range(3000)}, "required": [f"p{index}" for index in range(3000)]}
LONG = {"enum": ["a" * index for index in range(440)]}
OPTIONAL = {"properties": {f"p{index}": True for index in range(99)}}


@pytest.mark.parametrize("schema", [LARGEST, MANY, LONG, OPTIONAL], ids=["repetitions", "properties", "prefixes", "optional"])
def test_large_schemas_are_held_to(vocabulary: SmallVocabulary, schema: Any) -> None:
    grammar = vocabulary.grammar(schema_grammar(schema))
    assert len(grammar.allowed()) > 0


def test_formats_without_a_schema() -> None:
    assert grammar_of(None) is None
    assert grammar_of({"type": "text"}) is None
    assert json.loads(str(grammar_of({"type": "json_object"}))) == {"type": "object"}
    assert json.loads(str(grammar_of({"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON, "strict": True}}))) == PERSON


CHAIN = {f"d{index}": {"$ref": f"#/$defs/d{index + 1}"} for index in range(2000)}
MULTIPLES = {"allOf": [{"multipleOf": 7919}, {"multipleOf": 7907}]}
PATTERNS = {"patternProperties": {f"^q{index:04d}_[a-z]*$": True for index in range(1000)}}


def deep(levels: int) -> Any:
    schema: Any = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}, "uniqueItems"),
        ({"not": {"type": "string"}}, r'\["not"\]'),
        ({"type": "string", "format": "phone"}, "format: phone"),
        ({"type": "string", "pattern": "^(?=a)b$"}, "regex"),
        ({"type": "string", "pattern": "("}, "regex"),
        ({"$ref": "https://example.com/schema"}, "https://example.com/schema"),
        ({"$ref": "file:///etc/passwd"}, "file:///etc/passwd"),
        ({"$ref": "#/$defs/none"}, "/none"),
        ({"$ref": "#"}, "answers can be held to"),
        ({"anyOf": [{"$ref": "#"}]}, "answers can be held to"),
        ({"$defs": CHAIN | {"d2000": True}, "$ref": "#/$defs/d0"}, "at most 5000 levels"),
        (deep(200), "recursion limit"),
        ({"enum": []}, "Unsatisfiable"),
        ({"type": "null", "enum": [1]}, "Unsatisfiable"),
        ({"properties": {f"p{index}": True for index in range(10_000)}}, "100000 characters"),
        ({"enum": [0] * 10_001}, "at most 10000 values and properties, got 100"),
        ({"title": "x" * 100_001}, "100000 characters"),
        ({"minItems": None}, "minItems"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "minimum"),
        ({"type": "integer", "minimum": 1e300}, "range"),
        ({"multipleOf": 999_999_999}, "common multiple of at most 10000 of the last digit, got 999999999"),
        (MULTIPLES, "got 62615533"),
        ({"multipleOf": 1e-300}, "multipleOf"),
        ({"multipleOf": 0}, "multiple"),
        (PATTERNS, "at most 50 patternProperties, got 1000"),
        ({"x-guidance": {"lenient": True}, "uniqueItems": True}, "got x-guidance"),
        ({"type": "tuple"}, "tuple"),
        ({"anyOf": [], "title": "x"}, "anyOf"),
        ({"const": 10**400}, "number"),
        ({"const": "\ud800"}, "hex escape"),
        (5, "an object, got 5"),
    ],
)
def test_a_schema_that_cannot_be_held_to_is_refused_by_name(schema: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        schema_grammar(schema)
    assert str(caught.value).startswith("response_format: schema: expected ")
    assert len(str(caught.value)) < 600


def objects(inner: Any, count: int, key: str = "a") -> dict[str, Any]:
    """Return alternatives that only the texts after their first value tell apart."""
    return {"anyOf": [{"type": "object", "properties": {key: inner, f"x{index}": True}, "required": [key]} for index in range(count)]}


A = {"$ref": "#/$defs/A"}
RECURSIVE = {**A, "$defs": {"A": {"anyOf": [*objects(A, 4)["anyOf"], {"type": "null"}]}}}
NESTED = objects(objects(objects(objects(True, 4), 4), 4), 4)


@pytest.mark.parametrize("schema", [RECURSIVE, NESTED], ids=["recursive", "nested"])
def test_alternatives_that_begin_alike_cost_no_more_along_nesting(vocabulary: SmallVocabulary, schema: Any) -> None:
    grammar = vocabulary.grammar(schema_grammar(schema))
    began = thread_time()
    for token in vocabulary.ids_of('{"a":' * 4):
        assert grammar.fits([token])[0]
        grammar.accept(token)
    assert thread_time() - began < 1.0


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"properties": {"a": {"properties": {"b": True}}}}, ['{"a":{"b":1}}', "{}"], ['{"a":{"c":1}}', '{"c":1}']),
        ({"properties": {"properties": {"type": "integer"}}}, ['{"properties":1}'], ['{"x":1}']),
        ({"properties": {"a": True}, "required": ["a", "b"]}, ['{"a":1,"b":2}'], ['{"a":1}']),
        ({"properties": {"a": True}, "additionalProperties": True}, ['{"a":1,"x":2}'], []),
        ({"properties": {"a": True}, "patternProperties": {"^x": True}}, ['{"a":1,"xy":2}'], []),
        ({"allOf": [{"properties": {"a": True}}, {"properties": {"b": True}}]}, ['{"a":1,"b":2}'], []),
        ({"$defs": {"A": {"properties": {"a": True}}}, "$ref": "#/$defs/A", "properties": {"b": True}}, ['{"a":1,"b":2}'], []),
    ],
)
def test_no_property_stands_beside_those_named_unless_schemas_are_combined(
    vocabulary: SmallVocabulary, schema: Any, right: list[str], wrong: list[str]
) -> None:
    assert [text for text in right if not fits(vocabulary, schema, text)] == []
    assert [text for text in wrong if fits(vocabulary, schema, text)] == []


def test_a_schema_is_compiled_on_a_stack_of_its_own(vocabulary: SmallVocabulary) -> None:
    chain = {f"d{index}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{index + 1}"}}} for index in range(700)}
    found: list[TokenGrammar] = []
    before = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(
            target=lambda: found.append(vocabulary.grammar(schema_grammar({"$defs": chain | {"d700": True}, "$ref": "#/$defs/d0"})))
        )
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert len(found[0].allowed()) > 0


def test_without_llguidance_the_format_is_checked_and_the_device_refuses(
    vocabulary: SmallVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    schema = schema_grammar({"type": "string", "pattern": "^without$"})
    with pytest.raises(ConfigError, match="type of text"):
        grammar_of({"type": "xml"})
    with pytest.raises(ConfigError, match="common multiple"):
        schema_grammar({"multipleOf": 999_999_999})
    with pytest.raises(ConfigError, match=r"needs the package llguidance: pip install 'streamco\[prebuilt\]'"):
        vocabulary.grammar(schema)


@pytest.mark.parametrize(
    "given",
    [
        5,
        "json",
        {"type": "xml"},
        {},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "x"}},
        {"type": ["json_object"]},
        {"type": "json_object", "schema": []},
        {"type": "json_object", "schema": "object"},
        {"type": "json_object", "schema": {"type": "string", "pattern": "("}},
    ],
)
def test_another_format_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="response_format: "):
        grammar_of(given)


def test_an_object_may_have_a_schema_as_at_llama_cpp() -> None:
    as_schema = grammar_of({"type": "json_schema", "json_schema": {"schema": PERSON}})
    assert grammar_of({"type": "json_object", "schema": PERSON}) == as_schema


@pytest.mark.parametrize("schema", [None, {}])
def test_a_schema_that_says_nothing_leaves_any_object(schema: Any) -> None:
    assert grammar_of({"type": "json_object", "schema": schema}) == grammar_of({"type": "json_object"})


@pytest.mark.parametrize(
    ("given", "unknown"),
    [
        ({"type": "text", "grammar": "root ::= 'a'"}, "grammar"),
        ({"type": "text", "schema": PERSON}, "schema"),
        ({"type": "json_object", "json_schema": {"schema": PERSON}}, "json_schema"),
        ({"type": "json_object", "regex": "a"}, "regex"),
        ({"type": "json_schema", "json_schema": {"schema": PERSON}, "schema": PERSON}, "schema"),
        ({"type": "json_schema", "json_schema": {"schema": PERSON, "grammar": "x"}}, "grammar"),
    ],
)
def test_a_key_that_would_not_be_kept_to_is_refused_by_name(given: Any, unknown: str) -> None:
    with pytest.raises(ConfigError, match=f"^response_format: .*, got {unknown}$"):
        grammar_of(given)


def test_a_key_without_a_value_asks_for_nothing() -> None:
    assert grammar_of({"type": "text", "json_schema": None}) is None
    named = {"type": "json_schema", "json_schema": {"schema": PERSON, "name": "p", "strict": None, "description": "x"}, "schema": None}
    assert grammar_of(named) == grammar_of({"type": "json_object", "schema": PERSON})


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("given", [nested(100_000), {"type": "json_schema", "json_schema": nested(100_000)}])
def test_a_format_of_too_many_levels_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="response_format: expected JSON that can be read"):
        grammar_of(given)


@pytest.mark.parametrize("schema", [{"const": {1, 2}}, {"const": float("nan")}])
def test_what_is_not_json_is_refused(schema: Any) -> None:
    with pytest.raises(ConfigError, match="expected JSON"):
        schema_grammar(schema)


JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(
                [
                    *(
                        "type",
                        "properties",
                        "required",
                        "additionalProperties",
                        "items",
                        "prefixItems",
                        "minItems",
                        "maxItems",
                        "enum",
                        "const",
                    ),
                    *(
                        "anyOf",
                        "oneOf",
                        "allOf",
                        "enum",
                        "const",
                        "$ref",
                        "$defs",
                        "minLength",
                        "maxLength",
                        "format",
                        "minimum",
                        "maximum",
                        "pattern",
                    ),
                ]
            ),
            st.one_of(inner, st.sampled_from(["string", "object", "integer", "#", "#/$defs/x", "#/items", "date", "number"])),
            max_size=5,
        ),
    ),
    max_leaves=12,
)


@given(JUNK)
def test_junk_gives_a_grammar_or_the_documented_error(vocabulary: SmallVocabulary, schema: Any) -> None:
    try:
        vocabulary.grammar(schema_grammar(schema))
    except ConfigError:
        return


def test_a_schema_is_converted_once_for_equal_requests() -> None:
    first, again = ({"type": "array", "items": {"type": "string", "maxLength": 7}} for _ in range(2))
    assert schema_grammar(first) is schema_grammar(again)
