"""YAML documents that keep the line of each value, so that errors can name it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from streamco.errors import ConfigError

__all__ = ["Document", "Location", "read_document"]

MAX_CHARACTERS = 4 << 20  # an experiment with a thousand cases has a few hundred kB
MAX_VALUES = 250_000  # counted with each alias expanded, as in PyYAML and the checks of the options
MAX_LEVELS = 100  # of nested lists and mappings

Location = tuple[str | int, ...]
"""The keys and indices that lead to a value in a document."""


class Document:
    """The contents of a YAML file.

    Args:
        path: path of the file, as it was given.
        data: the file's value.
        lines: number of the line where each value begins, from 1, by location.

    Attributes:
        path, data: see the arguments.
    """

    def __init__(self, path: Path, data: Any, lines: Mapping[Location, int]) -> None:
        self.path = path
        self.data = data
        self._lines = lines

    def where(self, location: Location, name: Location | None = None) -> str:
        """Return the beginning of an error about an existing or missing value, such as ``file, line 7: world.link.rtt_ms``.

        Args:
            location: location of the value.
            name: name of the value in the error, or None for its location.
        """
        known = next(location[:size] for size in range(len(location), -1, -1) if location[:size] in self._lines)
        return _place(self.path, self._lines[known], location if name is None else name)


def _place(path: Path, line: int, location: Location) -> str:
    called = ".".join(map(str, location))
    return f"{path}, line {line}{f': {called}' if called else ''}"


def read_document(path: Path) -> Document:
    """Read a YAML file.

    Raises:
        ConfigError: the file can't be read or isn't YAML, has a duplicate key, an alias to a value that contains the alias, or too many
            values or levels, or PyYAML is missing.
    """
    try:
        yaml: Any = import_module("yaml")  # it has no type hints
    except ModuleNotFoundError as error:
        raise ConfigError("simulate: needs the package PyYAML: pip install 'streamco[sim]'") from error
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected a YAML file that can be read, got {error}") from error
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"{path}: expected at most {MAX_CHARACTERS} characters, got more")
    lines: dict[Location, int] = {(): 1}
    data = None
    try:
        loader = _loader_of(yaml)(text)
        node = loader.get_single_node()
        if node is not None:
            lines = _count_lines(node, path)
            data = loader.construct_document(node)
    except RecursionError as error:
        raise ConfigError(f"{path}: expected at most {MAX_LEVELS} levels of lists and mappings, got more") from error
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
        location = f", line {mark.line + 1}" if mark is not None else ""
        hint = "; a string with one of , : ? # in it needs quotes" if "expected" in problem or "not allowed here" in problem else ""
        raise ConfigError(f"{path}{location}: expected YAML, got {problem}{hint}") from error
    return Document(path, data, lines)


def _loader_of(yaml: Any) -> Any:
    """Return PyYAML's safe loader, but with line numbers in Python's errors about a value, such as a date with a 13th month."""

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def construct_object(self, node: Any, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise yaml.constructor.ConstructorError(None, None, f"a value that can't be: {error}", node.start_mark) from error

    return Loader


def _count_lines(node: Any, path: Path) -> dict[Location, int]:
    """Return the line of each value, by location.

    Raises:
        ConfigError: the values can't be counted, or there are too many. An alias counts as everything that its value contains.
    """
    lines: dict[Location, int] = {}
    for location, line in _lines_of(node, (), path, ()):
        if len(lines) == MAX_VALUES:
            raise ConfigError(f"{path}, line {line}: expected at most {MAX_VALUES} values, aliases expanded, got more")
        lines[location] = line
    return lines


def _lines_of(node: Any, location: Location, path: Path, above: tuple[Any, ...]) -> Iterator[tuple[Location, int]]:
    """Yield (location, line) of each value. A duplicate key is an error, because YAML would silently drop its first value.

    Args:
        node: the value.
        location: its location.
        path: path of the file.
        above: the values that contain it.
    """
    line = node.start_mark.line + 1
    if any(node is each for each in above):
        raise ConfigError(f"{_place(path, line, location)}: expected a value that doesn't hold itself, got an alias to one")
    if len(above) > MAX_LEVELS:
        raise ConfigError(f"{path}, line {line}: expected at most {MAX_LEVELS} levels of lists and mappings, got more")
    yield location, line
    if node.id == "sequence":
        for index, child in enumerate(node.value):
            yield from _lines_of(child, (*location, index), path, (*above, node))
    elif node.id == "mapping":
        seen: set[str] = set()
        for key, child in node.value:
            key_line = key.start_mark.line + 1
            if key.id != "scalar":
                raise ConfigError(f"{_place(path, key_line, location)}: expected strings as keys, got a {key.id}")
            name = str(key.value)
            if name in seen:
                raise ConfigError(f"{_place(path, key_line, (*location, name))}: this key is given twice")
            seen.add(name)
            for inner, found in _lines_of(child, (*location, name), path, (*above, node)):
                yield inner, key_line if inner == (*location, name) else found
