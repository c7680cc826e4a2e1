"""Files of recorded requests: traces, arrivals and lengths."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from streamco.errors import ConfigError
from streamco.sim.workload.trace_files import TraceRow, packaged_traces, read_about, read_gaps, read_lengths, read_trace

LINE = {"prompt_length": 5, "output_length": 3, "acceptance_seq": [1, 0, 1], "arrival_time_ms": 1500, "drafter_id": 7}
ROW = TraceRow(prompt_tokens=5, output_tokens=3, accepted=b"\1\0\1", arrival=1.5, device=7)
ABOUT = {"about": "three tokens", "target": "large", "draft": "small"}


def write(path: Path, *lines: Any) -> str:
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return str(path)


def test_every_packaged_trace_has_rows_and_says_what_it_is() -> None:
    assert len(packaged_traces()) > 3
    for name in packaged_traces():
        assert next(read_trace(name)).output_tokens > 0
        about = read_about(name)
        assert about["about"]
        assert about["target"]
    with pytest.raises(ConfigError, match=r"trace: expected the path of a file or one of .*gsm8k.*, got 'gsm9k'"):
        next(read_trace("gsm9k"))


@pytest.mark.parametrize("name", ["mine.jsonl", "mine.jsonl.gz"])
def test_rows_come_in_order_from_plain_and_compressed_files(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, ABOUT, LINE, "", {**LINE, "prompt_length": 6})
    assert [row.prompt_tokens for row in read_trace(path)] == [5, 6]
    assert next(read_trace(path)) == ROW
    assert read_about(path) == {**ABOUT, "recorded": "", "how": ""}


def test_a_file_without_a_description_has_none(tmp_path: Path) -> None:
    assert read_about(write(tmp_path / "mine.jsonl", LINE)) == {}
    assert read_about(write(tmp_path / "empty.jsonl")) == {}


def test_the_probabilities_of_a_row_are_kept_in_255ths(tmp_path: Path) -> None:
    line = {**LINE, "confidences": [255, 100, 1], "runners_up": [0, 100, 1], "ranks": "020"}
    row = next(read_trace(write(tmp_path / "mine.jsonl", line)))
    assert (row.confidences, row.runners_up, row.ranks) == (b"\xff\x64\1", b"\0\x64\1", b"\0\2\0")


def test_ranks_go_to_the_tenth_choice_and_attention_is_kept_in_255ths(tmp_path: Path) -> None:
    row = next(read_trace(write(tmp_path / "mine.jsonl", {**LINE, "ranks": "090", "attention": "0aff0a000aff"})))
    assert (row.ranks, row.attention) == (b"\0\x09\0", b"\x0a\xff\x0a\0\x0a\xff")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"acceptance_seq": [1, 0]}, "acceptance_seq: expected output_length values, 3, got 2"),
        ({"confidences": [1]}, "confidences: expected output_length values, 3, got 1"),
        ({"ranks": "111"}, "ranks: expected 0 where acceptance_seq has 1"),
        ({"runners_up": [1, 1, 1]}, "runners_up: only valid with confidences"),
        ({"confidences": [9, 9, 9], "runners_up": [9, 10, 9]}, "runners_up: expected no more than confidences has there"),
        ({"prompt_length": 0}, "prompt_length"),
        ({"attention": "0a0b0c0d"}, "attention: expected the same number of values for each of 3 tokens, got 4"),
        ({"attention": "0a0b0"}, "attention"),
    ],
)
def test_a_row_that_contradicts_itself_is_an_error_with_its_line_when_it_is_reached(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / "mine.jsonl", LINE, {**LINE, **changes})
    assert list(islice(read_trace(path), 1)) == [ROW]
    with pytest.raises(ConfigError, match=rf"mine\.jsonl, line 2: .*{message}"):
        list(read_trace(path))


@pytest.mark.parametrize("more", ["[" * 100_000 + "]" * 100_000, "9" * 5000 + "x"])
def test_a_row_that_cannot_be_decoded_is_an_error_with_its_line(tmp_path: Path, more: str) -> None:
    path = write(tmp_path / "mine.jsonl", LINE, f'{{"more": {more}}}')
    with pytest.raises(ConfigError, match=r"mine\.jsonl, line 2: "):
        list(read_trace(path))


def test_a_relative_file_is_also_looked_for_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "mine.jsonl", LINE)
    monkeypatch.delenv("STREAMCO_DATA", raising=False)
    with pytest.raises(ConfigError, match=r"mine\.jsonl: expected a file that can be read"):
        next(read_trace("mine.jsonl"))
    monkeypatch.setenv("STREAMCO_DATA", str(tmp_path))
    assert next(read_trace("mine.jsonl")) == ROW


@pytest.mark.parametrize(("column", "times"), [("arrival_s", (0.5, 2.0, 2.0)), ("arrival_ms", (500, 2000, 2000))])
def test_gaps_are_in_seconds_whatever_the_column(tmp_path: Path, column: str, times: tuple[float, ...]) -> None:
    path = write(tmp_path / "mine.csv", f"other,{column}", *(f"x,{time}" for time in times))
    assert read_gaps(path).tolist() == [1.5, 0.0]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("when", "1"), r"line 2: expected a column arrival_s or arrival_ms, got when"),
        (("arrival_s", "2", "1"), r"line 3: arrival_s: expected times that ascend, got 1 after a later one"),
        (("arrival_s", "2", "soon"), r"line 3: arrival_s: expected a number from 0, got 'soon'"),
        (("arrival_s", "2"), r"expected at least two rows, got fewer"),
    ],
)
def test_arrivals_that_can_not_be_are_errors(tmp_path: Path, lines: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_gaps(write(tmp_path / "mine.csv", *lines))


@pytest.mark.parametrize("columns", ["context_tokens,generated_tokens", "input_tokens,output_tokens", "prompt_tokens,target_tokens"])
def test_lengths_have_the_columns_of_several_traces_and_zeros_are_left_out(tmp_path: Path, columns: str) -> None:
    prompts, outputs = read_lengths(write(tmp_path / "mine.csv", columns, "10,20", "0,5", "7,0", "30,40"))
    assert (prompts.tolist(), outputs.tolist()) == ([10, 30], [20, 40])


def test_lengths_that_are_not_there_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"line 2: expected columns context_tokens or .*, got prompt_tokens"):
        read_lengths(write(tmp_path / "one.csv", "prompt_tokens", "1"))
    with pytest.raises(ConfigError, match="expected rows with tokens, got none"):
        read_lengths(write(tmp_path / "none.csv", "prompt_tokens,output_tokens", "0,0"))
