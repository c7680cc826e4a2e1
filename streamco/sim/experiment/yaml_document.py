"""YAML documents that keep the line of each value, so that errors can name it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from streamco.errors import ConfigError

__all__ = ["Document", "Location", "read_document"]

MAX_CHARACTERS = 4 << 20  # an experiment of a thousand cases has some hundred kB

Location = tuple[str | int, ...]
"""Keys and indices that lead to a value of a document."""


class Document:
    """Contents of a YAML file.

    Args:
        path: path of the file, as it was given.
        data: value of the file.
        lines: number of the line where each value begins, from 1, by location.

    Attributes:
        path, data: see the arguments.
    """

    def __init__(self, path: Path, data: Any, lines: Mapping[Location, int]) -> None:
        self.path = path
        self.data = data
        self._lines = lines

    def where(self, location: Location, name: Location | None = None) -> str:
        """Return the beginning of an error about a value that is or would be there: ``file, line 7: world.link.rtt_ms``.

        Args:
            location: location of the value.
            name: name of the value in the error; None: its location.
        """
        known = next(location[:size] for size in range(len(location), -1, -1) if location[:size] in self._lines)
        called = ".".join(str(part) for part in (location if name is None else name))
        return f"{self.path}, line {self._lines[known]}{f': {called}' if called else ''}"


def read_document(path: Path) -> Document:
    """Read a YAML file.

    Raises:
        ConfigError: the file can't be read, is no YAML, or has a key twice, or PyYAML is missing.
    """
    try:
        yaml: Any = import_module("yaml")  # it has no type hints
    except ModuleNotFoundError as error:
        raise ConfigError("simulate: expected the package PyYAML, got none: pip install 'streamco[sim]'") from error
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
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is not None:
            lines = dict(_lines_of(node, (), path))
            data = loader.construct_document(node)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
        location = f", line {mark.line + 1}" if mark is not None else ""
        hint = "; a text with one of , : ? # in it needs quotes" if "expected" in problem or "not allowed here" in problem else ""
        raise ConfigError(f"{path}{location}: expected YAML, got {problem}{hint}") from error
    return Document(path, data, lines)


def _lines_of(node: Any, location: Location, path: Path) -> Iterator[tuple[Location, int]]:
    """Yield (location, line) of each value. A key that is there twice is an error, because YAML would drop its first value silently."""
    yield location, node.start_mark.line + 1
    if node.id == "sequence":
        for index, child in enumerate(node.value):
            yield from _lines_of(child, (*location, index), path)
    elif node.id == "mapping":
        seen: set[str] = set()
        for key, child in node.value:
            name = str(key.value)
            if name in seen:
                called = ".".join(str(part) for part in (*location, name))
                raise ConfigError(f"{path}, line {key.start_mark.line + 1}: {called}: expected each key once, got it again")
            seen.add(name)
            for inner, line in _lines_of(child, (*location, name), path):
                yield inner, key.start_mark.line + 1 if inner == (*location, name) else line
