"""Templates that would run for ever or eat all memory are ended, and those of models go on as before."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from streamco.engines.chat_template import ChatTemplate
from streamco.errors import EngineError

USER = [{"role": "user", "content": "hi"}]

BOMBS = {
    "product": "{{ 'a' * 100000000 }}",
    "list": "{{ ([1] * 100000000) | length }}",
    "doubling": "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
    "joining": "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
    "test": "{% for a in range(99999) if range(99999) | select('in', range(99999) | list) | list %}{% endfor %}",
    "filters": "{% for a in range(99999) if a in (range(99999) | list) %}{% endfor %}",
    "power": "{{ 10 ** 100000000 }}",
    "numbers": "{% set ns = namespace(x=9) %}{% for i in range(9999) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "format": "{{ '%999999999d' % 1 }}",
    "method": "{{ '{:>999999999}'.format(1) }}",
    "nested width": "{{ '{:{w}}'.format(1, w=900000000) | length }}",
    "nested precision": "{{ '{:.{}f}'.format(1.5, 900000000) | length }}",
    "width of a mapping": "{{ '{a:{b[w]}}'.format_map({'a': 1, 'b': {'w': 900000000}}) | length }}",
    "width of a text": "{{ '{:{}}'.format(1, '9' ~ '0' * 8) | length }}",
    "safe width": "{{ ('{:{w}}' | safe).format(1, w=900000000) | length }}",
    "widths": "{{ ('{0:9999}' * 50000).format(1) | length }}",
    "widths of a format filter": "{{ ('%(a)9999d' * 54000) | format(a=1) | length }}",
    "widths of an operator": "{{ (('%(a)9999d' * 54000) % {'a': 1}) | length }}",
    "attribute of a field": "{% set c = cycler('a' * 1000000) %}{{ ('{0.current}' * 2000).format(c) | length }}",
    "conversion of a field": "{% set c = cycler(['a' * 1000000] * 2000) %}{{ '{0.current!r:.1}'.format(c) | length }}",
    "digits": "{% set ns = namespace(x=1) %}{% for i in range(90000) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"
    "{{ ('{0:x}' * 50000).format(ns.x) | length }}",
    "digits of a number": "{% set ns = namespace(x=1) %}{% for i in range(90000) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"
    "{{ (('%(a)x' * 50000) % {'a': ns.x}) | length }}",
    "ljust": "{{ 'a'.ljust(999999999) }}",
    "replace": "{{ ('a' * 100000).replace('a', 'a' * 100000) }}",
    "replacing": "{{ ('a' * 100000) | replace('a', 'a' * 100000) }}",
    "join": "{{ ('a' * 100000).join(['b'] * 100000) }}",
    "joined": "{{ (['b'] * 100000) | join('a' * 100000) }}",
    "center": "{{ 'a' | center(999999999) }}",
    "indent": "{{ ('\n' * 100000) | indent('a' * 100000) }}",
    "json": "{{ ([[1]] * 100000) | tojson(indent=9999) }}",
    "lipsum": "{{ lipsum(n=9999999) }}",
    "macro": "{% macro m(s) %}" + "{{ s }}" * 100 + "{% endmacro %}{{ m(m(m(m(m('aaaa'))))) }}",
    "recursion": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "block": "{% set x %}{% for i in range(99999) %}" + "a" * 90_000 + "{% endfor %}{% endset %}",
    "many": "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = ns.l + ['a' * 1000000] %}{% endfor %}",
    "escape": "{% set ns = namespace(x='&' * 1000000) %}{% for i in range(9999) %}{% set ns.x = ns.x | e | string | e %}{% endfor %}",
    "sum": "{{ ([range(9999) | list] * 99999) | sum(start=[]) | length }}",
    "sum of lists": "{{ ([[1]] * 30000) | sum(start=[]) | length }}",
    "sum of tuples": "{{ ([(1,)] * 30000) | sum(none, ()) | length }}",
    "format filter": "{{ '%999999999d' | format(1) }}",
    "formatting": "{{ ('%s' * 100000) | format(*['a' * 100000] * 100000) }}",
    "urlize": "{{ ('a.com ' * 9999) | urlize(target='a' * 100000) }}",
    "wordwrap": "{{ ('a' * 60000) | wordwrap(1, wrapstring='a' * 100000) }}",
    "comments": "{{ ('<!---->' * 500000) | striptags }}",
    "wrapped": "{{ ('a' * 4000000) | wordwrap(2) }}",
    "pprint": "{{ ([[[1]]] * 100000) | pprint }}",
    "separators": "{{ ([1] * 99999) | tojson(separators=('a' * 100000, ':')) }}",
    "indented": "{% set ns = namespace(x=[1] * 9999) %}{% for i in range(300) %}{% set ns.x = [ns.x] %}{% endfor %}"
    "{{ ns.x | tojson(indent=16) }}",
    "batch": "{% set x = [range(9999) | batch(1, 'a') | list] * 9999 %}{{ x | string | length }}",
    "slice": "{{ range(9999) | slice(999999999) | list }}",
    "random": "{{ ['a' * 1000000] | random * 1000 }}",
    "xmlattr": "{{ {'a': ['a' * 1000000] * 1000} | xmlattr }}",
}
# Shared parts that count each time: 2**60 of them, deeper than anybody looks.
DEEP = (
    "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
    "{% for i in range(30) %}{% set ns.x = [ns.x] %}{% endfor %}"
)
BOMBS |= {
    f"deep {use}": DEEP + use
    for use in (
        "{{ ns.x }}",
        "{{ ns }}",
        "{{ {'a': ns.x}.values() }}",
        "{{ {'a': ns.x}.items() | list }}",
        "{{ ns.x ~ '' }}",
        "{{ '%s' % ns.x }}",
        "{{ '{}'.format(ns.x) }}",
        "{{ ','.join([ns.x]) }}",
        *(
            f"{{{{ ns.x | {name} }}}}"
            for name in ("tojson", "string", "pprint", "upper", "urlencode", "wordcount", "center(9)", "e", "trim")
        ),
    )
}


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Half a gigabyte more than the process has now; a larger value would be a MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.long("after the first case")
@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused(bomb: str) -> None:
    with pytest.raises(EngineError) as refused:
        ChatTemplate(BOMBS[bomb]).render(USER)
    assert "MemoryError" not in str(refused.value)


@pytest.mark.parametrize("bomb", ["loops", "product", "macro"])
def test_a_model_with_a_bomb_is_refused_when_it_loads(bomb: str) -> None:
    with pytest.raises(EngineError, match="TemplateBoundError"):
        ChatTemplate(BOMBS[bomb]).check()


def test_other_refusals_are_no_reason_not_to_load() -> None:
    ChatTemplate("{{ raise_exception('system first') }}").check()


@pytest.mark.parametrize("source", ["(" * 50_000, "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "x" * 200_000])
def test_a_source_that_is_nested_or_long_is_refused_or_harmless(source: str) -> None:
    with suppress(EngineError):
        ChatTemplate(source).check()


def test_what_templates_of_models_do_goes_on() -> None:
    source = (
        "{% macro head(role, n=1) %}<{{ role ~ n }}>{% endmacro %}{% set ns = namespace(text='', seen=[]) %}"
        "{% for m in messages if m.role != 'x' %}{% set ns.text = ns.text + m.content.strip().split('|')[-1] %}"
        "{% set ns.seen = ns.seen + [m.role] %}"
        "{{ head(m.role, loop.index) }}{{ '%s-%d' % (m.content, 3) }}{{ '{}!'.format(m.role) }}{% endfor %}"
        "{{ ns.text | upper | replace('A', 'b') }}{{ ns.seen | join(',') }}{{ messages | map(attribute='role') | list | tojson }}"
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ {'a': [1, 2]} | tojson(indent=2) }}"
        "{{ 'x\ny' | indent(2) }}"
        "{% if 'a' is string and messages is iterable and not none %}{{ ' z ' | trim }}{% endif %}{{ 2 * 3 + 1 }}{{ '-' * 3 }}"
    )
    text = ChatTemplate(source).render([{"role": "user", "content": "q|a"}, {"role": "assistant", "content": " c "}])
    assert text == (
        '<user1>q|a-3user!<assistant2> c -3assistant!bCuser,assistant["user", "assistant"]1{\n  "a": [\n    1,\n    2\n  ]\n}x\n  yz7---'
    )


FILTERS = {
    "batch(2, 0) | list": "[[1, 2], [3, 0]]",
    "slice(2) | list": "[[1, 2], [3]]",
    "join('-') | center(9)": "  1-2-3  ",
    "length | filesizeformat": "3 Bytes",
    "first | string | forceescape": "1",
    "random is number": "True",
    "pprint": "[1, 2, 3]",
    "join(' ') | wordcount": "3",
    "join('&') | urlencode": "1%262%263",
    "join('</b>') | striptags": "123",
    "join(' ') | wordwrap(3)": "1 2\n3",
    "join(' ') | urlize": "1 2 3",
    "join(' ') | indent(2, true)": "  1 2 3",
}


@pytest.mark.parametrize("used", FILTERS)
def test_the_filters_of_jinja_are_there(used: str) -> None:
    assert ChatTemplate(f"{{{{ [1, 2, 3] | {used} }}}}").render(USER) == FILTERS[used]


def test_a_format_and_attributes_are_made() -> None:
    assert ChatTemplate("{{ '%s=%d' | format('a', 5) }}{{ {'a': 'b&'} | xmlattr }}").render(USER) == 'a=5 a="b&amp;"'


def test_formats_have_widths_from_arguments_attributes_and_mappings() -> None:
    source = (
        "{{ '{:>{w}}|{:.{}f}|{!r:5}'.format('a', 1.25, 1, 'b', w=3) }}|{{ '{a[b]:03}'.format_map({'a': {'b': 7}}) }}"
        "|{{ ('<{}>' | safe).format('<') }}|{{ '%05.1f 2024' | format(2.5) }}|{{ [1, 2, 3] | sum(start=4) }}"
    )
    assert ChatTemplate(source).render(USER) == "  a|1.2|'b'  |007|<&lt;>|002.5 2024|10"


def test_every_filter_of_this_jinja_is_known() -> None:
    """A new one is taken in when it is known what it makes of a value."""
    from jinja2.filters import FILTERS as JINJA

    from streamco.engines.llamacpp.template_sandbox import BoundedEnvironment

    assert set(BoundedEnvironment({}).filters) == set(JINJA)


def test_a_long_text_can_be_indented() -> None:
    text = "line\n" * 2000
    assert ChatTemplate("{{ messages[0].content | indent(4) }}").render([{"role": "user", "content": text}]).count("\n    line") == 1999


def test_marks_of_what_is_trained_are_blocks() -> None:
    source = (
        "{% for m in messages %}\n{% generation %}\n{% set x = m.content %}{{ x }}{% endgeneration %}\n"
        "{{ x | default('-') }}{% if m.content == 'b' %}{% generation %}{% break %}{% endgeneration %}{% endif %}{% endfor %}"
    )
    text = ChatTemplate(source).render([{"role": "user", "content": each} for each in "abc"])
    assert text == "a-b-"


def test_loops_inside_the_marks_have_bounds() -> None:
    with pytest.raises(EngineError, match="TemplateBoundError"):
        ChatTemplate(
            "{% generation %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endgeneration %}"
        ).check()


def test_a_long_conversation_fits() -> None:
    template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}")
    messages = [{"role": "user", "content": "word " * 2000}] * 500
    assert len(template.render(messages)) == 500 * (6 + 9999)
