"""Profiles by name and by file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.data.make_latency_profiles import bursts, quantiles, text_gaps
from streamco.emulation.latency_replay import quantile
from streamco.emulation.profiles import load_latency, load_step_times, packaged_names
from streamco.errors import ConfigError

LATENCY = {"kind": "latency", "name": "mine", "source": "me", "license": "MIT", "ttft_s": [0.1, 0.2]}
STEPS = {"kind": "step_times", "name": "mine", "source": "me", "license": "MIT", "decode_ms": [[1, 20.5]]}


def write(folder: Path, content: object) -> str:
    path = folder / "mine.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)


def test_every_packaged_profile_loads_and_names_its_source_and_licence() -> None:
    assert len(packaged_names("latency")) >= 10
    assert len(packaged_names("step_times")) >= 4
    for name in packaged_names("latency"):
        latency = load_latency(name)
        assert latency.name == name
        assert "github.com/" in latency.source
        assert latency.license in {"MIT", "Apache-2.0"}
    for name in packaged_names("step_times"):
        assert load_step_times(name).name == name


def test_a_file_is_read_as_a_profile(tmp_path: Path) -> None:
    assert load_latency(write(tmp_path, LATENCY)).ttft_s == (0.1, 0.2)
    assert load_step_times(write(tmp_path, STEPS))(1, 0) == 0.0205


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"openai-gpt-4-0125-preview.*got 'gpt-9'"):
        load_latency("gpt-9")


def test_a_profile_of_the_other_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected kind 'latency', got 'step_times'"):
        load_latency(write(tmp_path, STEPS))
    with pytest.raises(ConfigError, match="llama2-70b-a100x4"):
        load_step_times("openai-gpt-4-0125-preview")


DEEP = '{"kind": "latency", "more": ' + "[" * 100_000 + "]" * 100_000 + "}"


@pytest.mark.parametrize(
    "content", ["", "[1]", "{", DEEP, {**LATENCY, "ttft": 3}, {**LATENCY, "ttft_s": "fast"}, {**LATENCY, "ttft_s": []}]
)
def test_a_malformed_file_is_refused_with_a_reason(tmp_path: Path, content: object) -> None:
    with pytest.raises(ConfigError, match="latency profile"):
        load_latency(write(tmp_path, content))


def test_a_missing_file_and_an_oversized_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_latency(str(tmp_path / "none.json"))
    with pytest.raises(ConfigError, match="expected at most"):
        load_latency(write(tmp_path, " " * (2 << 20)))


def test_a_quantile_table_keeps_the_mean_in_spite_of_an_outlier() -> None:
    values = [0.05] * 990 + [0.2] * 9 + [30.0]
    table = quantiles(values)
    draws = [quantile(table, (index + 0.5) / 10_000) for index in range(10_000)]
    assert sum(draws) / len(draws) == pytest.approx(sum(values) / len(values), rel=0.01)
    assert max(table) < 30.0


def test_gaps_before_the_first_text_are_not_gaps_between_tokens() -> None:
    row = {"first_chunk_s": 0.4, "ttft_s": 2.5, "gaps_s": [0.001, 2.1, 0.0002, 0.5]}
    assert text_gaps(row) == [0.0002, 0.5]


def test_chunks_of_one_network_read_are_one_burst() -> None:
    assert bursts([0.0002, 0.0002, 0.03, 0.0001, 0.03]) == ([0.03, 0.03], [3, 2, 1])


@pytest.mark.parametrize("kind", ["latency", "step_times"])
def test_the_documented_examples_are_valid_profiles(tmp_path: Path, kind: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "profiles.md").read_text(encoding="utf-8")
    blocks = [block.partition("\n```")[0] for block in text.split("```json\n")[1:]]
    (example,) = (block for block in blocks if json.loads(block)["kind"] == kind)
    load = load_latency if kind == "latency" else load_step_times
    assert load(write(tmp_path, example)).name == "mine"


def test_every_packaged_family_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "profiles.md").read_text(encoding="utf-8")
    for name in packaged_names("latency"):
        assert f"`{name.split('-')[0]}-*`" in text
    for name in packaged_names("step_times"):
        assert name.rsplit("-", 1)[1] in text
