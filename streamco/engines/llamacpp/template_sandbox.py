"""Jinja's sandbox with limits: a template from a model file can't run for long, and can't create large values.

Each iteration of a loop and each call of a macro, filter or test counts as a step, at which the clock is read. Every operation that makes
values larger (``*``, ``+``, ``~``, filters, methods of strings, output into a variable) is checked before it runs. So only bounded work is
done between two steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, ValuesView
from collections.abc import Set as AbstractSet
from contextvars import ContextVar
from functools import wraps
from itertools import chain
from time import perf_counter
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.utils import Namespace
from markupsafe import Markup

__all__ = ["BoundedEnvironment", "Bounds", "TemplateBoundError"]

MAX_STEPS = 200_000
MAX_SECONDS = 2.0
MAX_SIZE = 1 << 22  # characters of a text or elements of a list that a template creates, beyond what it is given
MAX_NUMBER = 1 << 63
MAX_WIDTH = 10_000  # a number given to a filter or a method
_STEP, _JOIN = "_streamco_step", "_streamco_join"  # names that a template could use too, but it would only count or join more
MAX_SLOW = 1 << 16  # characters given to a filter that takes quadratic time
# Jinja's filters, as in transformers. A filter that a later Jinja adds is left out until ``_check_filter`` knows what it creates.
_FILTERS = frozenset({
    "abs", "attr", "batch", "capitalize", "center", "count", "d", "default", "dictsort", "e", "escape", "filesizeformat", "first", "float",
    "forceescape", "format", "groupby", "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min", "pprint",
    "random", "reject", "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr", "slice", "sort", "string", "striptags",
    "sum", "title", "tojson", "trim", "truncate", "unique", "upper", "urlencode", "urlize", "wordcount", "wordwrap", "xmlattr",
})  # fmt: skip
_PADDED = re.compile(r"\d{5}")  # a large width or precision in a format
_GIVEN_WIDTH = re.compile(r"%[^%a-zA-Z]*[*]")  # a width that comes with the values


class TemplateBoundError(Exception):
    """A template ran for too long, or created too large a value."""


class Bounds:
    """Counts what one rendering has used, and limits it.

    Args:
        given: number of characters in the messages; it raises the limit for the size of a value by four times that.
        seconds: time that the rendering may take.
    """

    def __init__(self, given: int = 0, seconds: float = MAX_SECONDS) -> None:
        self.max_size = MAX_SIZE + 4 * given
        self._left = 16 * (MAX_SIZE + 4 * given)
        self._seconds = seconds
        self._until = perf_counter() + seconds
        self._steps = 0

    def step(self) -> None:
        """Count a step.

        Raises:
            TemplateBoundError: there were too many steps, or the time is up.
        """
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise TemplateBoundError(f"expected at most {MAX_STEPS} turns of loops, got more")
        if perf_counter() > self._until:
            raise TemplateBoundError(f"expected at most {self._seconds:g} s, got more")

    def check_size(self, size: int) -> None:
        """Check the size of a value that is about to be created, and the sum of all sizes.

        Raises:
            TemplateBoundError: it is too large.
        """
        self._left -= size
        if size > self.max_size or self._left < 0:
            raise TemplateBoundError(f"expected values of at most {self.max_size} characters, got a larger one")


_current: ContextVar[Bounds] = ContextVar("bounds")


class _Generation(Extension):
    """The block ``{% generation %}``, which marks text that a model is trained to write (``AssistantTracker`` in transformers)."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """Return a block whose variables are visible only inside it."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The environment in which chat templates are compiled and run."""

    intercepted_binops = frozenset({"*", "+", "**", "%"})

    def __init__(self, filters: Mapping[str, Callable[..., Any]]) -> None:
        extensions = [_Generation, loopcontrols]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, optimized=False, finalize=_emitted)
        known = {**self.filters, **filters}
        self.filters = {name: _bounded(function) for name, function in known.items() if name in _FILTERS}
        tests: Mapping[str, Any] = self.tests
        self.tests = {name: _stepped(function) for name, function in tests.items()}
        self.globals.pop("lipsum", None)
        self.globals[_STEP] = _step
        self.globals[_JOIN] = _join

    def run(self, render: Callable[[], Any], bounds: Bounds) -> str:
        """Return the text of a rendering, within limits.

        Args:
            render: returns the pieces of a template's text.
            bounds: the limits of this rendering.

        Raises:
            TemplateBoundError: it ran for too long, or created too large a value.
        """
        token = _current.set(bounds)
        try:
            pieces, size = [], 0
            for piece in render():
                size += len(piece)
                bounds.step()
                if size > bounds.max_size:
                    bounds.check_size(size)
                pieces.append(piece)
            return "".join(pieces)
        finally:
            _current.reset(token)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for node in [each for kind in (nodes.For, nodes.Macro, nodes.CallBlock) for each in template.find_all(kind)]:
            written = sum(len(each.data) for each in node.find_all(nodes.TemplateData))
            node.body.insert(0, nodes.Output([_step_call(written)]))  # type: ignore[attr-defined]
            if isinstance(node, nodes.For) and node.test is not None:
                node.test = nodes.And(nodes.Not(_step_call(0)), node.test)
        _replace_joins(template)
        template.set_environment(self)
        template.set_lineno(1)  # of the nodes that have none
        return template

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute an operation, after checking that its value can't be too large."""
        bounds = _current.get()
        if operator == "+":
            bounds.check_size(_size(left) + _size(right))
        elif operator == "*":
            _check_product(bounds, left, right)
        elif operator == "**":
            if not (_is_small(left) and isinstance(right, int | float) and abs(right) <= 64):
                raise TemplateBoundError("expected a power of small numbers, got a larger one")
        elif operator == "%" and isinstance(left, str):
            _check_format(left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, function: Any, *arguments: Any, **options: Any) -> Any:
        """Call a function or method, after checking that its value can't be too large."""
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            _current.get().check_size(len(owner))
            self._check_method(owner, function.__name__, [*arguments, *options.values()])
        return super().call(context, function, *arguments, **options)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return a checked, sandboxed form of a text's ``format`` method, or None if ``value`` is another function."""
        if super().wrap_str_format(value) is None:
            return None
        text: str = value.__self__
        takes_mapping = value.__name__ == "format_map"

        def checked(*arguments: Any, **options: Any) -> str:
            if takes_mapping and (options or len(arguments) != 1):
                raise TypeError(f"format_map: expected one mapping, got {len(arguments) + len(options)} arguments")
            formatter = _EscapeFormatter(self, escape=text.escape) if isinstance(text, Markup) else _Formatter(self)
            made = formatter.vformat(text, (), arguments[0]) if takes_mapping else formatter.vformat(text, arguments, options)
            return type(text)(made)

        return checked

    def _check_method(self, text: str, name: str, arguments: list[Any]) -> None:
        if name == "replace" and len(arguments) >= 2:
            _check_replacement(text, arguments[0], arguments[1])
        elif name == "join" and arguments:
            _check_joined(text, arguments[0])
        elif name in {"translate", "expandtabs"}:
            raise TemplateBoundError(f"expected no str.{name}, got one")
        else:
            _check_widths(arguments)


class _Formatter(SandboxedFormatter):
    """Formats one text, and checks each field first, because its value may come from an attribute and its width from an argument."""

    _made = 0  # characters

    def convert_field(self, value: Any, conversion: Any) -> Any:
        """Return a field's value, or its text if the format has ``!r``, ``!s`` or ``!a``."""
        if conversion is not None:
            self._check(_size_within(value))
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> Any:
        """Return a field's text; the widths in ``format_spec`` are already numbers, wherever they came from."""
        self._check(_size_within(value) + _widths(format_spec))
        return super().format_field(value, format_spec)

    def _check(self, size: int) -> None:
        bounds = _current.get()
        bounds.step()
        bounds.check_size(size)
        self._made += size
        if self._made > bounds.max_size:
            bounds.check_size(self._made)


class _EscapeFormatter(_Formatter, SandboxedEscapeFormatter):
    """Formats one text that is marked as safe, and escapes its fields."""


def _step(written: int) -> str:
    bounds = _current.get()
    bounds.step()
    bounds.check_size(written)
    return ""


def _step_call(written: int) -> nodes.Call:
    return nodes.Call(nodes.Name(_STEP, "load"), [nodes.Const(written)], [], None, None)


def _emitted(value: Any) -> Any:
    """Count the characters that an expression writes into the text or into a variable."""
    _current.get().check_size(_size_within(value))
    return value


def _join(*values: Any) -> str:
    _current.get().check_size(sum(map(_size_within, values)))
    return "".join(map(str, values))


def _stepped(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def stepped(*arguments: Any, **options: Any) -> Any:
        _current.get().step()
        return function(*arguments, **options)

    return stepped


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    name = function.__name__

    @wraps(function)  # copies Jinja's marks too, which say what comes before the value
    def bounded(*arguments: Any, **options: Any) -> Any:
        bounds = _current.get()
        bounds.step()
        start = int(hasattr(function, "jinja_pass_arg"))
        value, values = arguments[start], [*arguments[start + 1 :], *options.values()]
        if name in {"do_join", "do_sum", "do_list"} and not isinstance(value, str):
            value = list(value)  # a generator's size isn't known
        _check_filter(bounds, name, value, values)
        result = function(*arguments[:start], value, *arguments[start + 1 :], **options)
        if isinstance(result, str):
            bounds.check_size(len(result))
        return result

    return bounded


def _check_filter(bounds: Bounds, name: str, value: Any, values: list[Any]) -> None:
    """Check how large a filter's result for a value and arguments would be, and how long it would take to compute."""
    is_json = name == "_to_json"
    _check_widths(values, 16 if is_json else MAX_WIDTH)
    given = sum(_size_within(each) for each in values if not isinstance(each, int | float) and each is not None)
    if name == "do_replace":
        _check_replacement(str(value), *values[:2])
    elif name == "do_format":
        _check_format(str(value), values)
    elif name == "do_sum" and any(isinstance(each, list | tuple) for each in values):
        raise TemplateBoundError("expected numbers to sum, got a list")  # each partial list would be copied for the next one
    elif name in {"do_join", "do_sum", "do_list"}:
        bounds.check_size(_size_within(value) + (given * len(value) if name == "do_join" else given))
    elif name == "do_indent":
        width = max(given, 4, *(each for each in values if isinstance(each, int)))
        bounds.check_size((1 + str(value).count("\n")) * width)
    elif is_json:
        indent = max((each for each in values if isinstance(each, int)), default=0)
        bounds.check_size(_size_within(value, beside=given, level=indent + given))
    elif name in {"do_pprint", "do_striptags", "do_urlize", "do_wordwrap"}:
        size = _size_within(value)
        if size > MAX_SLOW:
            raise TemplateBoundError(f"expected at most {MAX_SLOW} characters for this filter, got more")
        bounds.check_size(size * (1 + given))
    else:
        bounds.check_size(_size_within(value))


def _replace_joins(node: nodes.Node) -> None:
    """Replace each ``~`` below a node with a checked call."""
    for name, value in list(node.iter_fields()):
        if isinstance(value, nodes.Node):
            setattr(node, name, _joined(value))
        elif isinstance(value, list):
            value[:] = [_joined(each) if isinstance(each, nodes.Node) else each for each in value]


def _joined(node: nodes.Node) -> nodes.Node:
    _replace_joins(node)
    return nodes.Call(nodes.Name(_JOIN, "load"), node.nodes, [], None, None) if isinstance(node, nodes.Concat) else node


def _size(value: Any) -> int:
    return len(value) * (1 if isinstance(value, str) else 8) if hasattr(value, "__len__") else 1


def _size_within(value: Any, *, beside: int = 0, level: int = 0) -> int:
    """Return about how many characters a value has as text; shared parts count each time.

    Counting stops when the value turns out to be too large.

    Args:
        value: any value of a template.
        beside: additional characters for each part.
        level: additional characters for each part and each level of its nesting.
    """
    if isinstance(value, str | int | float):
        return _length(value)
    limit = _current.get().max_size
    total, unread = 0, [iter([value])]  # what is left of the value, of a part of it, of a part of that ...
    while unread and total <= limit:
        for part in unread[-1]:
            total += _length(part) + beside + level * (len(unread) - 1)
            parts = _parts(part)
            if parts is not None:
                unread.append(parts)
            if parts is not None or total > limit:
                break
        else:
            unread.pop()
    return total


def _length(part: Any) -> int:
    """Return about how many characters a value without parts has as text; for a number, in any base."""
    if isinstance(part, str):
        return len(part) + 2
    if isinstance(part, int):
        return max(32, part.bit_length())
    return 320 if isinstance(part, float) and abs(part) > MAX_NUMBER else 32


def _parts(value: Any) -> Iterator[Any] | None:
    """Return the parts that are written when a value is written, or None if it has none."""
    if isinstance(value, Namespace):
        value = value._Namespace__attrs
    if isinstance(value, Mapping):
        return chain.from_iterable(value.items())
    return iter(value) if isinstance(value, list | tuple | AbstractSet | ValuesView) else None


def _is_small(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= MAX_WIDTH


def _check_product(bounds: Bounds, left: Any, right: Any) -> None:
    if isinstance(left, int | float) and isinstance(right, int | float):
        if abs(left * 1.0) * abs(right * 1.0) > MAX_NUMBER:
            raise TemplateBoundError("expected numbers below 2**63, got a larger one")
        return
    sequence, count = (right, left) if isinstance(left, int) else (left, right)
    if isinstance(count, int) and hasattr(sequence, "__len__"):
        bounds.check_size(_size(sequence) * max(0, count))


def _check_widths(values: list[Any], limit: int = MAX_WIDTH) -> None:
    if any(isinstance(each, int) and abs(each) > limit for each in values):
        raise TemplateBoundError(f"expected numbers up to {limit} as arguments, got a larger one")


def _check_replacement(text: Any, old: Any = None, new: Any = None) -> None:
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
        found = text.count(old) if old else len(text) + 1
        _current.get().check_size(len(text) + found * len(new))


def _check_format(text: str, values: Any) -> None:
    """Check the size of the text that ``%`` makes from a format and values."""
    if _GIVEN_WIDTH.search(text):
        raise TemplateBoundError('expected a format with widths of its own, got "*"')
    _current.get().check_size(len(text) + _widths(text) + (1 + text.count("%")) * _size_within(values))


def _widths(text: str) -> int:
    """Return an upper bound on the characters that a format's widths and precisions add: the sum of all numbers in it."""
    if _PADDED.search(text):
        raise TemplateBoundError("expected a format without large widths, got one with them")
    return sum(map(int, re.findall(r"\d+", text)))


def _check_joined(separator: str, items: Any) -> None:
    if isinstance(items, list | tuple):
        _current.get().check_size(sum(len(separator) + _size_within(each) for each in items))
