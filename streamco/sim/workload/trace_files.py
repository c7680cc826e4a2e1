"""Files of recorded requests: traces with acceptance sequences (DSD Table 1), and CSV files of arrivals and lengths.

A trace is a file of JSON lines, one request per line, plain or gzipped; docs/workloads.md lists its fields. Fields from DSD's Table 1 have
the same names as there, and unknown fields are ignored. A first line with ``about`` describes the trace.

Rows are read one at a time. An invalid row is an error that names file and line, because a simulation of half a trace would look as good as
one of the whole trace.
"""

from __future__ import annotations

import csv
import gzip
import math
import operator
import os
import zlib
from array import array
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import IO, Annotated, Literal, cast

import msgspec
from msgspec import Meta, Struct

from streamco.errors import ConfigError

__all__ = ["TraceRow", "packaged_traces", "read_about", "read_gaps", "read_lengths", "read_trace"]

_ENDINGS = (".jsonl", ".jsonl.gz")
_TIMES = {"arrival_s": 1.0, "arrival_ms": 0.001}  # columns of CSV files, and their unit in seconds
_PROMPTS = ("context_tokens", "input_tokens", "prompt_tokens")
_OUTPUTS = ("generated_tokens", "output_tokens", "target_tokens")
_IS_ACCEPTED = bytes([1, *[0] * 9])  # by rank

Count = Annotated[int, Meta(ge=1)]
Share = Annotated[int, Meta(ge=0, le=255)]  # in 255ths


class TraceRow(Struct, frozen=True, kw_only=True):
    """A request of a trace; see ``workload.SimulatedRequest``.

    Args:
        confidences, runners_up: probabilities in 255ths.
        attention: for each token, the share of its row's attention that goes to itself and the 0, 1, 2, ... tokens before it, in 255ths.
        arrival: arrival in seconds, or None if not recorded.
        device: number of the device that it came from, or None if not recorded.
    """

    prompt_tokens: int
    output_tokens: int
    accepted: bytes
    confidences: bytes = b""
    runners_up: bytes = b""
    ranks: bytes = b""
    attention: bytes = b""
    arrival: float | None = None
    device: int | None = None


class _TraceLine(Struct):
    prompt_length: Count
    output_length: Count
    acceptance_seq: list[Literal[0, 1]]
    arrival_time_ms: Annotated[float, Meta(ge=0)] | None = None
    drafter_id: Annotated[int, Meta(ge=0)] | None = None
    confidences: list[Share] = []
    runners_up: list[Share] = []
    ranks: Annotated[str, Meta(pattern="^[0-9]*$")] = ""
    attention: Annotated[str, Meta(pattern="^([0-9a-f]{2})*$")] = ""


class _About(Struct):
    about: str
    target: str = ""
    draft: str = ""
    recorded: str = ""
    how: str = ""


def packaged_traces() -> list[str]:
    """Return the names of the packaged traces, sorted."""
    return sorted({name.partition(".")[0] for name in _packaged()})


def _packaged() -> dict[str, Traversable]:
    folder = resources.files("streamco.sim") / "traces"
    return {entry.name: entry for entry in folder.iterdir() if entry.name.endswith(_ENDINGS)}


def read_about(trace: str) -> Mapping[str, str]:
    """Return a trace's description from its first line (``about``, ``target``, ``draft``, ``recorded``, ``how``), or {} if it has none.

    Raises:
        ConfigError: there is no such trace.
    """
    for _, line in _lines(trace):
        about = _decode_about(line)
        return {} if about is None else cast(dict[str, str], msgspec.to_builtins(about))
    return {}


def read_trace(trace: str) -> Iterator[TraceRow]:
    """Yield the rows of a packaged trace (``packaged_traces``) or of a file, in order.

    If a file isn't at its path, it is looked for in the folder ``$STREAMCO_DATA``.

    Raises:
        ConfigError: there is no such trace, it has no rows, or a row is invalid.
    """
    is_empty = True
    for number, line in _lines(trace):
        if not line.strip() or (is_empty and _decode_about(line) is not None):
            continue
        is_empty = False
        try:
            yield _row(msgspec.json.decode(line, type=_TraceLine))
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise ConfigError(f"{trace}, line {number}: {error}") from error
    if is_empty:
        raise ConfigError(f"{trace}: expected rows with prompt_length, output_length and acceptance_seq, got none")


def _row(line: _TraceLine) -> TraceRow:
    tokens = line.output_length
    for name in ("acceptance_seq", "confidences", "runners_up", "ranks"):
        values = getattr(line, name)
        if len(values) != tokens and (values or name == "acceptance_seq"):
            raise ConfigError(f"{name}: expected output_length values, {tokens}, got {len(values)}")
    accepted, ranks = bytes(line.acceptance_seq), bytes(map(int, line.ranks))
    if ranks and ranks.translate(_IS_ACCEPTED.ljust(256, b"\0")) != accepted:
        raise ConfigError("ranks: expected 0 where acceptance_seq has 1 and nowhere else, got something else")
    if line.runners_up and not line.confidences:
        raise ConfigError("runners_up: only valid with confidences")
    if any(map(operator.gt, line.runners_up, line.confidences)):
        raise ConfigError("runners_up: expected no more than confidences has there, got more")
    attention = bytes.fromhex(line.attention)
    if len(attention) % tokens:
        raise ConfigError(f"attention: expected the same number of values for each of {tokens} tokens, got {len(attention)}")
    return TraceRow(
        prompt_tokens=line.prompt_length,
        output_tokens=tokens,
        accepted=accepted,
        confidences=bytes(line.confidences),
        runners_up=bytes(line.runners_up),
        ranks=ranks,
        attention=attention,
        arrival=None if line.arrival_time_ms is None else line.arrival_time_ms / 1000.0,
        device=line.drafter_id,
    )


def _decode_about(line: bytes) -> _About | None:
    try:
        return msgspec.json.decode(line, type=_About)
    except (ValueError, RecursionError):
        return None  # a row or an invalid line, which the reader of rows checks


def read_gaps(path: str) -> array[float]:
    """Return the seconds between the arrivals in a CSV file, in order, in 8 bytes each.

    Args:
        path: path of a file with a column ``arrival_s`` or ``arrival_ms``.

    Raises:
        ConfigError: there is no such file or column, there are fewer than two rows, or a time isn't a number or is before the previous one.
    """
    gaps, before = array("d"), math.nan
    for number, row in _rows(path):
        column = next((name for name in _TIMES if name in row), None)
        if column is None:
            raise ConfigError(f"{path}, line {number}: expected a column {' or '.join(_TIMES)}, got {', '.join(row)}")
        now = _number(path, number, column, row[column]) * _TIMES[column]
        if now < before:
            raise ConfigError(f"{path}, line {number}: {column}: expected times that ascend, got {row[column]} after a later one")
        if not math.isnan(before):
            gaps.append(now - before)
        before = now
    if not gaps:
        raise ConfigError(f"{path}: expected at least two rows, got fewer")
    return gaps


def read_lengths(path: str) -> tuple[array[int], array[int]]:
    """Return the tokens of the prompts and of the answers in a CSV file, in order. Rows in which either is 0 are left out.

    Args:
        path: path of a file with the columns of Azure's, Mooncake's or DSD's traces.

    Raises:
        ConfigError: there is no such file or column, there is no row, or a length isn't a number.
    """
    prompts, outputs = array("q"), array("q")
    for number, row in _rows(path):
        names = [next((name for name in known if name in row), None) for known in (_PROMPTS, _OUTPUTS)]
        if names[0] is None or names[1] is None:
            wanted = f"{' or '.join(_PROMPTS)}, and {' or '.join(_OUTPUTS)}"
            raise ConfigError(f"{path}, line {number}: expected columns {wanted}, got {', '.join(row)}")
        prompt, output = (int(_number(path, number, name, row[name])) for name in cast(list[str], names))
        if prompt and output:
            prompts.append(prompt)
            outputs.append(output)
    if not prompts:
        raise ConfigError(f"{path}: expected rows with tokens, got none")
    return prompts, outputs


def _number(path: str, line: int, column: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise ConfigError(f"{path}, line {line}: {column}: expected a number from 0, got {text!r}")
    return value


def _rows(path: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line, row) of a CSV file."""
    reader = csv.DictReader((line.decode("utf-8", "replace") for _, line in _lines(path)), restkey="more")
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise ConfigError(f"{path}, line {reader.line_num}: expected comma-separated values, got {error}") from error


def _lines(name: str) -> Iterator[tuple[int, bytes]]:
    """Yield (number from 1, line) of a packaged trace or of a file."""
    try:
        with _open(name) as file, gzip.open(file) if _is_compressed(file) else file as lines:
            yield from enumerate(cast(IO[bytes], lines), 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{name}: expected a file that can be read, got {getattr(error, 'strerror', None) or error}") from error


def _open(name: str) -> IO[bytes]:
    if "." not in name and os.sep not in name:
        packaged = _packaged()
        for ending in _ENDINGS:
            if name + ending in packaged:
                return packaged[name + ending].open("rb")
        raise ConfigError(f"trace: expected the path of a file or one of {', '.join(packaged_traces())}, got {name!r}")
    path, data = Path(name).expanduser(), os.environ.get("STREAMCO_DATA")
    return (Path(data) / path if data and not path.exists() else path).open("rb")


def _is_compressed(file: IO[bytes]) -> bool:
    magic = file.read(2)
    file.seek(0)
    return magic == b"\x1f\x8b"
