"""Stores finished scenarios on disk, as JSON lines that are only appended and never changed.

A line's key is a digest of the scenario and the files that it names. The line also has a digest of the code that ran it. So a sweep that
was interrupted, or that has more values than last time, continues where it stopped. Results of other code or other files are ignored.
If the machine loses power, the last line may be incomplete. It is then cut off.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from streamco.errors import ConfigError
from streamco.sim.experiment.scenario import Outcome, Scenario

__all__ = ["ResultStore", "code_digest", "name_of"]

PACKAGE = Path(str(resources.files("streamco")))
IGNORED = {"cli", "proxy", "testing", "calibration", "__pycache__"}  # folders of the package that outcomes don't depend on
COMPILED = {".so", ".c", ".pyc", ".pyd"}  # made from sources that are already in the digest
MAX_CHARACTERS = 4096  # maximum characters of a path


class _Line(Struct):
    key: str
    code: str
    outcome: msgspec.Raw = msgspec.Raw(b"")


class ResultStore:
    """The finished scenarios in a file.

    Args:
        path: path of the file, which is created with the first line.
        code: digest of the current code.
        takes_any: True to use results of other code, too.

    Raises:
        ConfigError: the file contains something else.
    """

    def __init__(self, path: Path, *, code: str, takes_any: bool = False) -> None:
        self._path = path
        self._code = code
        self._found: dict[str, tuple[int, int]] = {}  # byte at which the outcome's line begins, and its length
        others: dict[str, tuple[int, int]] = {}
        for line, begin, length in self._read():
            (self._found if line.code == code else others)[line.key] = (begin, length)
        if takes_any:
            self._found = {**others, **self._found}

    def __contains__(self, key: str) -> bool:
        return key in self._found

    def add(self, key: str, outcome: bytes) -> None:
        """Append the JSON of an outcome."""
        line = msgspec.json.encode(_Line(key, self._code, msgspec.Raw(outcome))) + b"\n"
        with self._path.open("ab") as file:
            self._found[key] = (file.tell(), len(line))
            file.write(line)

    def read(self, key: str) -> Outcome:
        """Return a stored outcome; its rows are plain JSON values."""
        return msgspec.json.decode(self.read_json(key), type=Outcome)

    def read_json(self, key: str) -> bytes:
        """Return the JSON of a stored outcome, exactly as it was added."""
        begin, length = self._found[key]
        with self._path.open("rb") as file:
            file.seek(begin)
            return bytes(msgspec.json.decode(file.read(length), type=_Line).outcome)

    def _read(self) -> Iterator[tuple[_Line, int, int]]:
        if not self._path.exists():
            return
        begin = 0
        with self._path.open("r+b") as file:
            for number, text in enumerate(file, 1):
                if not text.endswith(b"\n"):
                    file.truncate(begin)
                    return
                try:
                    line = msgspec.json.decode(text, type=_Line)
                except msgspec.DecodeError as error:
                    raise ConfigError(f"{self._path}, line {number}: expected a finished scenario, got {error}: delete it") from error
                yield line, begin, len(text)
                begin += len(text)


def name_of(scenario: Scenario) -> str:
    """Return the key of a scenario: a digest of its settings and of the files that they name."""
    files = sorted(_digest(path) for text in _texts(scenario.settings) if (path := _file_named(scenario, text)) is not None)
    return hashlib.sha256("\n".join([scenario.key, *files]).encode()).hexdigest()[:32]


@cache
def code_digest(kind_location: str) -> str:
    """Return a digest of everything that a run depends on: the package's sources and tables, and the kind's module."""
    files = {
        path
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix not in COMPILED and not IGNORED & set(path.relative_to(PACKAGE).parts)
    }
    spec = find_spec(kind_location.partition(":")[0])
    if spec is not None and spec.origin is not None:
        files.add(Path(spec.origin))
    return hashlib.sha256("".join(sorted(_digest(path) for path in files)).encode()).hexdigest()[:16]


@cache
def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _texts(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict | list | tuple):
        for each in data.values() if isinstance(data, dict) else data:
            yield from _texts(each)


def _file_named(scenario: Scenario, text: str) -> Path | None:
    if len(text) > MAX_CHARACTERS or "\0" in text:
        return None
    path = scenario.locate(text)
    return path if path.is_file() else None
