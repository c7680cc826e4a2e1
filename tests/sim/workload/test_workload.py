"""Workloads: traces are read as they are, dealt evenly, repeated and shuffled by a seed; what can't be meant is refused with its place."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamco.errors import ConfigError
from streamco.sim.workload.trace_files import packaged_traces, read_about, read_trace
from streamco.sim.workload.workload import ArrivalOptions, SimulatedRequest, WorkloadOptions, read_requests

ROW = {"prompt_length": 27, "output_length": 3, "acceptance_seq": [1, 0, 1], "arrival_time_ms": 5.3, "drafter_id": 38}  # DSD's Table 1


def options(**settings: Any) -> WorkloadOptions:
    return msgspec.convert(settings, WorkloadOptions)


def requests(seed: int = 1, devices: int | None = None, **settings: Any) -> list[SimulatedRequest]:
    return list(read_requests(options(**settings), devices=devices, seed=seed))


def trace(tmp_path: Path, *rows: dict[str, Any] | str, name: str = "trace.jsonl") -> str:
    text = "\n".join(row if isinstance(row, str) else json.dumps({**ROW, **row}) for row in rows)
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


def table(tmp_path: Path, text: str) -> str:
    path = tmp_path / "arrivals.csv"
    path.write_text(text)
    return str(path)


def test_a_row_of_table_1_is_a_request(tmp_path: Path) -> None:
    (found,) = requests(trace=trace(tmp_path, {}), devices=100)
    assert found == SimulatedRequest(number=0, arrival=0.0053, prompt_tokens=27, output_tokens=3, accepted=bytes([1, 0, 1]), device=38)


def test_a_row_can_say_confidences_and_ranks_and_what_nobody_asked_for(tmp_path: Path) -> None:
    small = 0.25 / 255  # below half of one
    row = {"confidences": [255, 7, 0], "runners_up": [0, 7, 0], "ranks": "030", "client": "x"}
    (found,) = requests(trace=trace(tmp_path, row, name="t.jsonl.gz"))
    assert (found.confidences, found.runners_up, found.ranks) == ((1.0, 7 / 255, small), (small, 7 / 255, small), bytes([0, 3, 0]))
    assert found.device is None


def test_a_system_prompt_stands_in_front_of_every_prompt(tmp_path: Path) -> None:
    (found,) = requests(trace=trace(tmp_path, {}), system_prompt=400)
    assert (found.prompt_tokens, found.common_tokens) == (427, 400)


@pytest.mark.parametrize("name", packaged_traces())
def test_packaged_traces_say_what_they_are_and_have_confidences_and_ranks(name: str) -> None:
    about = read_about(name)
    model = "Qwen2.5-Coder" if name.endswith("_qwen") else "SmolLM2"
    assert model in about["target"]
    assert model in about["draft"]
    for row in read_trace(name):
        assert len(row.accepted) == len(row.confidences) == len(row.ranks) == row.output_tokens
        assert row.arrival is row.device is None


def test_the_three_tasks_are_packaged() -> None:
    assert {"gsm8k", "cnn_dailymail", "humaneval"} <= set(packaged_traces())


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt_length": "27"}, r"Expected `int`, got `str` - at `\$.prompt_length`"),
        ({"prompt_length": 0}, r"Expected `int` >= 1 - at `\$.prompt_length`"),
        ({"output_length": 4}, "acceptance_seq: expected output_length values, 4, got 3"),
        ({"acceptance_seq": [1, 2, 0]}, "Invalid enum value 2"),
        ({"confidences": [1]}, "confidences: expected output_length values, 3, got 1"),
        ({"confidences": [1, 2, 256]}, "Expected `int` <= 255"),
        ({"confidences": [9, 9, 9], "runners_up": [9, 10, 1]}, "runners_up: expected no more than confidences has there"),
        ({"runners_up": [0, 0, 0]}, "runners_up: only valid with confidences"),
        ({"runners_up": [1]}, "runners_up: expected output_length values, 3, got 1"),
        ({"ranks": "012"}, "ranks: expected 0 where acceptance_seq has 1"),
        ({"ranks": "0x0"}, "Expected `str` matching regex"),
        ({"arrival_time_ms": -1}, "Expected `float` >= 0"),
        ('{"prompt_length": 5', "Input data was truncated"),
        ('{"prompt_length": 5}', "missing required field `output_length`"),
        ("[]", "Expected `object`, got `array`"),
    ],
)
def test_a_bad_row_is_refused_with_file_and_line(tmp_path: Path, row: Any, message: str) -> None:
    path = trace(tmp_path, {}, row)
    with pytest.raises(ConfigError, match=f"{path}, line 2: .*{message}"):
        requests(trace=path)


def test_a_trace_that_has_nothing_or_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (trace(tmp_path, name="empty.jsonl"), trace(tmp_path, '{"about": "nothing"}', name="about.jsonl")):
        with pytest.raises(ConfigError, match=f"{path}: expected rows with prompt_length"):
            requests(trace=path)
    with pytest.raises(ConfigError, match="expected a file that can be read, got No such file"):
        requests(trace=str(tmp_path / "none.jsonl"))
    with pytest.raises(ConfigError, match=r"expected the path of a file or one of .*gsm8k.*, got 'gsm9k'"):
        requests(trace="gsm9k")
    whole, broken = gzip.compress(json.dumps(ROW).encode() * 50), tmp_path / "broken.jsonl.gz"
    for data, reason in ((whole[:-20], "Compressed file ended"), (whole[:14] + bytes(20) + whole[34:], "Error -3 while decompressing")):
        broken.write_bytes(data)
        with pytest.raises(ConfigError, match=f"broken.jsonl.gz: expected a file that can be read, got {reason}"):
            requests(trace=str(broken))


def test_arrivals_of_a_trace_have_to_be_there_and_to_ascend(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gsm8k, request 1: arrival_time_ms: expected .* other arrivals, got none"):
        requests(trace="gsm8k")
    with pytest.raises(ConfigError, match=r"request 2: arrival_time_ms: expected times that ascend, .* got 4 after 5.3"):
        requests(trace=trace(tmp_path, {}, {"arrival_time_ms": 4}))
    with pytest.raises(ConfigError, match="drafter_id: expected one below the number of devices, 38, got 38"):
        requests(trace=trace(tmp_path, {}), devices=38)


def test_a_trace_goes_on_behind_its_end_with_its_arrivals_and_other_rows(tmp_path: Path) -> None:
    rows = [{"prompt_length": 1 + position, "arrival_time_ms": 1000.0 * position, "drafter_id": position} for position in range(20)]
    found = requests(trace=trace(tmp_path, *rows), requests=50, devices=20)
    assert [each.arrival for each in found] == pytest.approx(range(50))
    assert [each.device for each in found] == [position % 20 for position in range(50)]
    prompts = [each.prompt_tokens for each in found]
    assert prompts[:20] == list(range(1, 21))
    assert sorted(prompts[20:40]) == prompts[:20] != prompts[20:40]


def test_with_other_arrivals_a_trace_is_shuffled_by_the_seed_and_used_up_before_it_is_repeated(tmp_path: Path) -> None:
    path = trace(tmp_path, *({"prompt_length": 1 + position} for position in range(20)))
    orders = [[each.prompt_tokens for each in requests(seed, trace=path, requests=45, arrivals={"poisson_per_s": 9})] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0][:20]) == sorted(orders[0][20:40]) == list(range(1, 21))
    assert len(requests(trace=path, arrivals={"poisson_per_s": 9})) == 20


def test_poisson_arrivals_have_the_rate_and_the_spread_of_an_exponential() -> None:
    times = [each.arrival for each in requests(trace="gsm8k", requests=20_000, arrivals={"poisson_per_s": 25})]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.04, rel=0.03)
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(mean, rel=0.05)


def test_recorded_gaps_come_in_their_order_from_anywhere_and_faster_if_asked(tmp_path: Path) -> None:
    path = table(tmp_path, "arrival_ms,other\n0,a\n1000,b\n3000,c\n6000,d\n")
    times = [each.arrival for each in requests(trace="gsm8k", requests=8, arrivals={"azure": path, "rate_scale": 2})]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert times[0] == 0.0
    assert next(gaps[position : position + 3] for position in range(3) if gaps[position] == 0.5) == [0.5, 1.0, 1.5]
    assert gaps[3:6] == gaps[:3]
    begun = {requests(seed, trace="gsm8k", requests=2, arrivals={"azure": path})[1].arrival for seed in range(20)}
    assert begun == {1.0, 2.0, 3.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arrival_s\n1\n" + "9" * 200_000 + "\n", "line 2: expected comma-separated values, got field larger than field limit"),
        ("time\n1\n2\n", "line 2: expected a column arrival_s or arrival_ms, got time"),
        ("arrival_s\n1\n", "expected at least two rows"),
        ("arrival_s\n1\nx\n", "line 3: arrival_s: expected a number from 0, got 'x'"),
        ("arrival_s\n2\n1\n", "line 3: arrival_s: expected times that ascend"),
    ],
)
def test_arrivals_that_can_not_be_meant_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = table(tmp_path, text)
    with pytest.raises(ConfigError, match=f"{path}.*{message}"):
        requests(trace="gsm8k", requests=2, arrivals={"azure": path})


def test_a_closed_loop_leaves_the_times_to_the_world() -> None:
    settings = options(trace="gsm8k", requests=30, arrivals={"closed": 4})
    assert settings.in_flight == 4
    assert {each.arrival for each in read_requests(settings)} == {0.0}
    assert options(trace="gsm8k", arrivals={"poisson_per_s": 1}).in_flight is None


def test_requests_are_dealt_to_the_devices_evenly() -> None:
    found = Counter(each.device for each in requests(trace="gsm8k", requests=6000, arrivals={"closed": 1}, devices=6))
    assert sorted(found) == list(range(6))  # type: ignore[type-var]
    assert all(900 < count < 1100 for count in found.values())
    with pytest.raises(ConfigError, match="devices: expected at least 1, got 0"):
        requests(trace="gsm8k", arrivals={"closed": 1}, devices=0)


def test_other_arrivals_or_devices_leave_the_requests_as_they_are() -> None:
    def bodies(**settings: Any) -> list[tuple[int, bytes]]:
        found = requests(requests=20, prompt={"uniform": [5, 90]}, output={"log_normal": {"median": 60, "sigma": 0.5}}, **settings)
        return [(each.prompt_tokens, each.accepted) for each in found]

    assert bodies(arrivals={"poisson_per_s": 3}) == bodies(arrivals={"closed": 5}, devices=7)


def test_generated_lengths_are_of_their_distributions(tmp_path: Path) -> None:
    found = requests(
        requests=3000,
        arrivals={"closed": 1},
        prompt={"uniform": [10, 30]},
        output={"log_normal": {"median": 60, "sigma": 0.5}, "least": 20, "most": 200},
    )
    prompts, outputs = sorted(each.prompt_tokens for each in found), sorted(each.output_tokens for each in found)
    assert (prompts[0], prompts[-1]) == (10, 30)
    assert (outputs[0], outputs[-1]) == (20, 200)
    assert outputs[1500] == pytest.approx(60, abs=4)
    assert all(len(each.accepted) == len(each.confidences) == len(each.ranks) == each.output_tokens for each in found)
    path = table(tmp_path, "arrival_s,context_tokens,generated_tokens\n0,7,3\n1,9,4\n2,9,0\n")
    pairs = {(each.prompt_tokens, each.output_tokens) for each in requests(requests=50, arrivals={"closed": 1}, lengths=path)}
    assert pairs == {(7, 3), (9, 4)}
    assert {each.output_tokens for each in requests(requests=9, arrivals={"closed": 1}, prompt=5, output=8)} == {8}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "expected a trace, or prompt and output, or lengths, got none"),
        ({"prompt": 5, "requests": 1, "arrivals": {"closed": 1}}, "expected a trace, or prompt and output"),
        ({"trace": "gsm8k", "prompt": 5}, "expected a trace or prompt, got both"),
        ({"prompt": 5, "output": 5, "arrivals": {"closed": 1}}, "requests: expected a number"),
        ({"prompt": 5, "output": 5, "requests": 1}, "arrivals: expected poisson_per_s, azure or closed"),
        ({"trace": "gsm8k", "arrivals": {}}, "expected trace or one of poisson_per_s, azure and closed, got none"),
        ({"trace": "gsm8k", "arrivals": {"closed": 1, "poisson_per_s": 2}}, "got poisson_per_s, closed"),
        ({"trace": "gsm8k", "arrivals": {"closed": 1, "rate_scale": 2}}, "rate_scale: only valid with azure"),
        ({"trace": "gsm8k", "arrivals": {"poisson_per_s": 0}}, "Expected `float` > 0"),
        ({"trace": "gsm8k", "arrival": "trace"}, "unknown field `arrival`"),
        ({"prompt": {"uniform": [5, 4]}, "output": 5, "requests": 1, "arrivals": {"closed": 1}}, "least before the most, got 5 and 4"),
        ({"prompt": {"least": 4}, "output": 5, "requests": 1, "arrivals": {"closed": 1}}, "one of uniform and log_normal"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        options(**settings)


def test_settings_survive_json() -> None:
    settings = options(requests=5, prompt={"uniform": [1, 9]}, output=4, arrivals={"poisson_per_s": 0.5}, acceptance={"mean": 0.7})
    assert msgspec.json.decode(msgspec.json.encode(settings), type=WorkloadOptions) == settings
    with pytest.raises(ConfigError, match="got none"):
        ArrivalOptions()


def test_a_million_requests_do_not_live_at_once() -> None:
    found = read_requests(options(trace="gsm8k", requests=1_000_000, arrivals={"poisson_per_s": 100}), devices=50)
    next(found)
    tracemalloc.start()
    try:
        assert sum(1 for _ in islice(found, 20_000)) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_requests_arrive_until_the_horizon_as_often_as_the_trace_has_to_be_repeated(tmp_path: Path) -> None:
    path = trace(tmp_path, {}, {"prompt_length": 5})
    found = requests(trace=path, arrivals={"poisson_per_s": 50}, horizon_s=10)
    assert 400 < len(found) < 600
    assert found[-1].arrival < 10.0
    assert found[-1].arrival > 9.5
    assert len(requests(trace=path, arrivals={"poisson_per_s": 50}, horizon_s=10, requests=7)) == 7
    assert len(requests(prompt=5, output=5, arrivals={"poisson_per_s": 50}, horizon_s=1)) > 20


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"arrivals": {"closed": 3}, "horizon_s": 5}, "horizon_s: only valid with arrivals poisson_per_s or azure"),
        ({"arrivals": "trace", "horizon_s": 5}, "horizon_s: only valid with arrivals poisson_per_s or azure"),
        ({"arrivals": {"poisson_per_s": 3}, "horizon_s": 5, "warm_up_s": 5}, "warm_up_s: expected less than the horizon, 5 s, got 5"),
    ],
)
def test_a_horizon_needs_arrivals_that_don_t_end_and_time_after_the_warm_up(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        options(trace="gsm8k", **settings)
