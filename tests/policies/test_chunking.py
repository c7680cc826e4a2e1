"""Prompt chunks: equation 3 with its bounds, and the rule for servers that it has no solution for."""

from __future__ import annotations

import re
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamco.errors import ConfigError
from streamco.policies.chunking import (
    FLAT,
    SMALLEST,
    Chunking,
    ChunkPlan,
    PromptPlan,
    ServerLoad,
    SplitPath,
    check_chunking,
    chunk_size,
    chunks_in_flight,
    fastest_chunk_size,
    is_link_slower,
    parallel_steps,
    plan_prompt,
)
from streamco.profiles.chunk_times import ChunkTimes
from streamco.profiles.row_costs import RowCosts

GPU = RowCosts({1: 0.018 + 0.00013, 2048: 0.018 + 0.00013 * 2048})
"""Vicuna-7B on one A6000, from the paper's 0.28 s for 2,000 rows."""

CPU = RowCosts({1: 0.0037, 4: 0.0078, 16: 0.022, 32: 0.044, 64: 0.063, 128: 0.138, 512: 0.55})
"""SmolLM2's middle layers, Q4_0 repacked, on one core."""

ROW_7B, ROW_SMALL, UPLOAD = 8192, 1152, 7.5e6  # bytes, bytes, bytes per second


def fastest(prompt: int, *, smallest: int = SMALLEST, largest: int | None = None, computed: int = 0, **known: Any) -> ChunkPlan:
    return fastest_chunk_size(prompt, ChunkTimes.from_costs(**known), smallest=smallest, largest=largest, computed=computed)


def in_flight(prompt: int, size: int, *, computed: int = 0, round_trip: float = 0.0, **known: Any) -> int:
    return chunks_in_flight(prompt, size, ChunkTimes.from_costs(**known), computed=computed, round_trip=round_trip)


tables = st.dictionaries(st.integers(1, 600), st.floats(1e-5, 1.0), min_size=1, max_size=8)


def test_a_gpu_gets_the_size_at_which_sending_and_computing_take_as_long() -> None:
    plan = chunk_size(2048, costs=GPU, row_bytes=ROW_7B, upload_rate=UPLOAD)
    assert plan.is_balanced
    sending = plan.size * ROW_7B / UPLOAD
    assert sending >= GPU.seconds(plan.size)
    assert (plan.size - 1) * ROW_7B / UPLOAD < GPU.seconds(plan.size - 1)
    assert plan.size == 19


def test_load_makes_chunks_larger() -> None:
    idle = chunk_size(2048, costs=GPU, row_bytes=ROW_7B, upload_rate=UPLOAD)
    busy = chunk_size(2048, costs=GPU, row_bytes=ROW_7B, upload_rate=UPLOAD, load_rows=9)
    assert busy.size == 40
    assert busy.size > idle.size


def test_several_stages_are_bounded_from_below() -> None:
    assert chunk_size(2048, costs=GPU, row_bytes=ROW_7B, upload_rate=UPLOAD, stages=4).size == SMALLEST
    assert chunk_size(2048, costs=GPU, row_bytes=ROW_7B, upload_rate=UPLOAD, stages=4, smallest=32).size == 32


def test_a_cpu_gets_the_smallest_size_at_which_a_row_is_cheap() -> None:
    plan = chunk_size(2048, costs=CPU, row_bytes=ROW_SMALL, upload_rate=UPLOAD)
    assert not plan.is_balanced
    assert plan.size == 57


@pytest.mark.parametrize("prompt", [1, 5, 15, 16, 17])
def test_a_short_prompt_is_one_chunk_at_most_as_long_as_itself(prompt: int) -> None:
    assert chunk_size(prompt, costs=GPU, row_bytes=ROW_7B, upload_rate=UPLOAD).size == min(prompt, 19)


def test_the_largest_size_holds() -> None:
    plan = chunk_size(2048, costs=GPU, row_bytes=ROW_7B, upload_rate=1e9, largest=128)
    assert plan.size in range(100, 129)
    assert not plan.is_balanced


@given(tables, st.integers(1, 600), st.floats(1e3, 1e9), st.floats(0, 200), st.tuples(st.integers(1, 8), st.integers(1, 64)))
def test_a_plan_solves_the_equation_or_is_nearly_the_cheapest(
    table: dict[int, float], prompt: int, rate: float, load: float, bounds: tuple[int, int]
) -> None:
    costs, (stages, smallest) = RowCosts(table), bounds
    plan = chunk_size(prompt, costs=costs, row_bytes=1152, upload_rate=rate, load_rows=load, stages=stages, smallest=smallest)
    assert min(smallest, prompt) <= plan.size <= prompt
    sizes = range(min(smallest, prompt), prompt + 1)
    solutions = [rows for rows in sizes if rows * 1152 / rate >= (costs.seconds(load) + costs.seconds(load + rows)) / stages]
    assert plan.is_balanced == bool(solutions)
    if solutions:
        assert plan.size == solutions[0]
    else:
        assert costs.row_seconds(plan.size) <= FLAT * min(map(costs.row_seconds, sizes))


@pytest.mark.parametrize(
    "wrong", [{"prompt": 0}, {"stages": 0}, {"smallest": 0}, {"row_bytes": 0.0}, {"upload_rate": 0.0}, {"upload_rate": float("nan")}]
)
def test_arguments_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    arguments: dict[str, float] = {"prompt": 100, "row_bytes": 1152.0, "upload_rate": UPLOAD, **wrong}
    with pytest.raises(ValueError, match="chunk size: expected"):
        chunk_size(costs=GPU, **arguments)  # type: ignore[arg-type]


def test_load_is_a_moving_average() -> None:
    load = ServerLoad(RowCosts({1: 1.0, 100: 2.0}))
    load.record(10, 1.0)
    assert load.rows == pytest.approx(2.0)
    load.record(20, 1.0)
    assert load.rows == pytest.approx(0.8 * 2.0 + 0.2 * 20)


def test_times_are_learned_by_size() -> None:
    load = ServerLoad(RowCosts({1: 1.0, 100: 2.0}))
    for _ in range(60):
        load.record(100, 6.0)
    assert load.costs().seconds(100) == pytest.approx(6.0, rel=1e-3)
    assert load.costs().seconds(1) == 1.0


def test_a_time_between_two_sizes_is_scaled_to_the_nearer_one() -> None:
    load = ServerLoad(RowCosts({10: 1.0, 100: 10.0}), memory=0.0)
    load.record(50, 10.0)  # twice as slow as the line between them says
    assert load.costs().seconds(100) == pytest.approx(20.0)


def test_a_memory_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="memory"):
        ServerLoad(GPU, memory=1.0)


def test_steps_that_fit_into_the_wait() -> None:
    arguments = {"row_bytes": 8192.0, "upload_rate": 8192e3, "download_rate": 8192e3, "server_seconds": 0.018}
    assert parallel_steps(4, step_seconds=0.005, **arguments) == 5  # (4 + 4 + 18 ms) / 5 ms
    assert parallel_steps(4, step_seconds=0.005, round_trip=0.03, **arguments) == 11
    assert parallel_steps(0, step_seconds=0.05, **arguments) == 0


@pytest.mark.parametrize("name", ["upload_rate", "download_rate", "step_seconds"])
def test_steps_need_rates_above_0(name: str) -> None:
    arguments = {"row_bytes": 1.0, "upload_rate": 1.0, "download_rate": 1.0, "server_seconds": 1.0, "step_seconds": 1.0, name: 0.0}
    with pytest.raises(ValueError, match="parallel steps: expected rates"):
        parallel_steps(1, **arguments)


def test_chunks_in_flight_cover_the_answer_of_the_first() -> None:
    costs = RowCosts({1: 0.018, 64: 0.018})
    arguments: dict[str, Any] = {"costs": costs, "row_bytes": 8000.0, "upload_rate": 8e6}
    assert in_flight(1024, 16, **arguments) == 10  # 18 ms at the server, 16 on the link: the 64th is sent after 55 answers
    merged = {**arguments, "is_merged": True}
    assert in_flight(1024, 16, **merged) == 5  # one is sent, one waits, two are computed together, and one more
    assert in_flight(1024, 16, round_trip=0.08, **merged) == 10  # five more on the way
    assert in_flight(1024, 16, load_rows=10, round_trip=0.08, **merged) == 11  # after the batch that runs already
    assert in_flight(1024, 16, input_costs=line(0.0, 0.002), **merged) == 4  # the link waits for the device
    assert in_flight(1024, 16, input_costs=line(0.0, 0.002), computed=1024, **merged) == 5
    assert in_flight(1024, 16, download_rate=4e6, **merged) == 35  # half of them have come back
    assert in_flight(1024, 16, room=16, **merged) == 10  # one chunk in a batch
    assert in_flight(1024, 1000, **arguments) == 3


def line(setup: float, row: float) -> RowCosts:
    return RowCosts({1: setup + row, 4096: setup + 4096 * row})


@given(
    sizes=st.tuples(st.integers(1, 1500), st.integers(1, 400), st.just(0) | st.integers(0, 1500)),
    times=st.tuples(st.floats(0.0001, 0.05), st.floats(1e-6, 1e-3)),
    rate=st.floats(1e6, 1e8),
    server=st.tuples(st.integers(1, 4), st.booleans(), st.integers(1, 600), st.integers(0, 40)),
    ends=st.tuples(st.floats(0.0, 5e-3), st.floats(1e-6, 2e-3), st.just(0.0) | st.floats(1e-6, 2e-3), st.floats(0.0, 0.2)),
)
def test_no_more_chunks_in_flight_are_sooner(
    sizes: tuple[int, int, int],
    times: tuple[float, float],
    rate: float,
    server: tuple[int, bool, int, int],
    ends: tuple[float, float, float, float],
) -> None:
    (prompt, size, computed), (stages, is_merged, room, load), (input_setup, input_row, download, round_trip) = sizes, server, ends
    chunks = -(-prompt // size)
    input_costs = line(input_setup, input_row)
    known: dict[str, Any] = {"costs": line(*times), "stages": stages, "is_merged": is_merged}
    known |= {"input_costs": input_costs, "computed": computed}
    limit = in_flight(
        prompt,
        size,
        row_bytes=8192.0,
        upload_rate=rate,
        download_rate=8192.0 / download if download else inf,
        round_trip=round_trip,
        room=room,
        load_rows=load,
        **known,
    )
    assert 2 <= limit <= chunks + 1
    free, limited = (
        seconds_with_a_limit(
            prompt, size, most, row=8192.0 / rate, download=download, round_trip=round_trip, room=max(1, room - load), load=load, **known
        )
        for most in (chunks + 1, limit)
    )
    assert limited <= free * (1 + 1e-6)


@pytest.mark.parametrize("wrong", [{"size": 0}, {"row_bytes": 0.0}, {"upload_rate": 0.0}, {"download_rate": 0.0}])
def test_chunks_in_flight_need_a_size_and_rates(wrong: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"size": 16, "row_bytes": 1.0, "upload_rate": 1.0, **wrong}
    with pytest.raises(ValueError, match="chunk size: expected"):
        in_flight(100, costs=RowCosts({1: 1.0}), **arguments)


def seconds_with_a_limit(
    prompt: int,
    size: int,
    limit: int,
    *,
    row: float,
    costs: RowCosts,
    stages: int,
    is_merged: bool,
    room: int,
    load: int,
    input_costs: RowCosts,
    download: float,
    round_trip: float,
    computed: int,
) -> float:
    """Seconds until the last chunk comes back, if at most ``limit`` chunks are begun and not answered. A row has ``download`` seconds."""
    waiting = [min(size, prompt - start) for start in range(0, prompt, size)]
    inputs = [input_costs.seconds(min(rows, max(0, place * size + rows - computed))) for place, rows in enumerate(waiting)]
    answers: list[float] = []  # when each chunk is answered
    arrivals: list[tuple[float, int]] = []  # what the server has not read of each chunk that was sent
    free, ready, sent, back, begun = [0.0] * stages, 0.0, 0.0, 0.0, 0
    while waiting or arrivals:
        may_begin = ready if begun < limit else answers[begun - limit] if len(answers) > begun - limit else None
        moment = max(free[0], arrivals[0][0]) if arrivals else None
        if waiting and may_begin is not None and (moment is None or max(ready, may_begin) <= moment):
            ready = max(ready, may_begin) + inputs[begun]
            sent = max(sent, ready) + waiting[0] * row
            arrivals.append((sent, waiting.pop(0)))
            begun += 1
            continue
        assert moment is not None
        come = [rows for at, rows in arrivals if at <= moment + 1e-9][: None if is_merged else 1]
        rows = left = min(room, sum(come))
        ended = 0
        while left:
            at, first = arrivals.pop(0)
            if first > left:
                arrivals.insert(0, (at, first - left))
                break
            left -= first
            ended += 1
        for stage in range(stages):
            moment = free[stage] = max(moment, free[stage]) + costs.seconds(load + rows) / stages
        back = max(back, moment) + rows * download
        answers += [back + round_trip] * ended
    return back


def read_seconds(
    prompt: int,
    size: int,
    *,
    row: float,
    costs: RowCosts,
    stages: int = 1,
    is_merged: bool = True,
    room: int = 10_000,
    load: int = 0,
    input_costs: RowCosts | None = None,
    download: float = 0.0,
) -> float:
    """Seconds of a prompt's chunks over a link of ``row`` seconds a row, and a server that takes all that have come, or one."""
    chunks = [min(size, prompt - start) for start in range(0, prompt, size)]
    sent, ready, arrivals = 0.0, 0.0, []
    for rows in chunks:
        ready += 0.0 if input_costs is None else input_costs.seconds(rows)
        sent = max(sent, ready) + rows * row
        arrivals.append((sent, rows))
    free, back = [0.0] * stages, 0.0
    while arrivals:
        moment = max(free[0], arrivals[0][0])
        come = [rows for at, rows in arrivals if at <= moment + 1e-12][: None if is_merged else 1]
        rows, kept = min(room - load, sum(come)), sum(come) - min(room - load, sum(come))
        arrivals = [(0.0, kept)] * (kept > 0) + arrivals[len(come) :]
        for stage in range(stages):
            moment = free[stage] = max(moment, free[stage]) + costs.seconds(load + rows) / stages
        back = max(back, moment) + rows * download
    return back


@given(
    sizes=st.tuples(st.integers(1, 3000), st.integers(16, 3000)) | st.tuples(st.integers(17, 100), st.integers(16, 100)),
    rate=st.floats(1e6, 1e8),
    times=st.tuples(st.floats(0.0001, 0.05), st.floats(1e-6, 1e-3)),
    server=st.tuples(st.integers(1, 4), st.booleans()),
    ends=st.tuples(st.none() | st.builds(line, st.floats(0.0, 0.005), st.floats(1e-6, 2e-3)), st.just(0.0) | st.floats(1e-6, 2e-3)),
)
def test_no_chunks_are_much_faster_than_the_fastest(
    sizes: tuple[int, int], rate: float, times: tuple[float, float], server: tuple[int, bool], ends: tuple[RowCosts | None, float]
) -> None:
    (prompt, other), (stages, is_merged), (input_costs, download), costs = sizes, server, ends, line(*times)
    plan = fastest(
        prompt,
        costs=costs,
        row_bytes=8192.0,
        upload_rate=rate,
        stages=stages,
        is_merged=is_merged,
        input_costs=input_costs,
        download_rate=8192.0 / download if download else inf,
    )
    known: dict[str, Any] = {"costs": costs, "stages": stages, "is_merged": is_merged, "input_costs": input_costs, "download": download}
    assert 1 <= plan.size <= prompt
    found, *others = (
        read_seconds(prompt, size, row=8192 / rate, **known) for size in (plan.size, prompt, other, 16, 32, 64, 128, 256, 512)
    )
    assert found <= 1.1 * min(others)


@pytest.mark.parametrize(
    ("prompt", "row", "stages"),
    [(28, 0.00099, 4), (30, 0.00042, 3), (129, 0.0009, 1)],
)
def test_a_short_last_chunk_may_be_worth_more_than_even_ones(prompt: int, row: float, stages: int) -> None:
    costs = RowCosts({1: 0.0014 + row, 4096: 0.0014 + 4096 * row})
    arguments: dict[str, Any] = {"costs": costs, "stages": stages, "is_merged": True}
    size = fastest(prompt, row_bytes=8192.0, upload_rate=1.7e7, **arguments).size
    seconds = {size: read_seconds(prompt, size, row=8192 / 1.7e7, **arguments) for size in range(16, prompt + 1)}
    assert seconds[size] <= 1.06 * min(seconds.values())


def test_a_prompt_that_is_sent_hardly_slower_than_it_is_computed_is_cut_all_the_same() -> None:
    costs = RowCosts({1: 0.01813, 2048: 0.2842})  # 0.154 ms a row on the link, 0.130 at the server
    arguments: dict[str, Any] = {"costs": costs, "row_bytes": 1152.0, "upload_rate": 7.5e6}
    assert chunk_size(2000, **arguments).size > 700, "equation 3 waits for 18 ms to be gained at 0.024 ms a row"
    assert fastest(128, **arguments).size == 128
    assert 64 <= fastest(512, is_merged=True, **arguments).size <= 300
    assert 64 <= fastest(2000, is_merged=True, **arguments).size <= 400
    assert 200 <= fastest(512, **arguments).size <= 300
    assert 300 <= fastest(2000, **arguments).size <= 700


def test_the_fastest_chunks_keep_their_bounds() -> None:
    arguments: dict[str, Any] = {"costs": GPU, "row_bytes": 8192.0, "upload_rate": 7.5e6}
    assert fastest(2000, largest=64, **arguments).size <= 64
    assert fastest(2000, smallest=200, **arguments).size >= 200
    assert fastest(5, **arguments).size == 5
    with pytest.raises(ValueError, match="chunk size: expected a prompt"):
        fastest(0, **arguments)
    with pytest.raises(ValueError, match="chunk size: expected a download of more than 0"):
        fastest(5, download_rate=0.0, **arguments)
    whole, few = (read_seconds(2000, size, row=8192 / 7.5e6, costs=GPU, room=256, load=250) for size in (2000, 31))
    size = fastest(2000, load_rows=250, room=256, is_merged=True, **arguments).size
    assert read_seconds(2000, size, row=8192 / 7.5e6, costs=GPU, room=256, load=250) <= 1.04 * few < whole


def test_a_slow_device_or_a_download_of_all_rows_makes_the_fastest_chunks_smaller() -> None:
    arguments: dict[str, Any] = {"costs": GPU, "row_bytes": 8192.0, "upload_rate": 7.5e6, "is_merged": True}
    size = fastest(1024, **arguments).size
    slow = fastest(1024, input_costs=line(0.004, 0.001), **arguments).size
    assert slow < size
    assert fastest(1024, input_costs=line(0.02, 0.001), **arguments).size > slow, "each chunk costs the device time, too"
    assert fastest(1024, input_costs=line(0.004, 0.001), computed=1024, **arguments).size == size
    assert fastest(1024, download_rate=12.5e6, **arguments).size < size


def test_a_prompts_own_rows_are_no_steady_load() -> None:
    load = ServerLoad(RowCosts({1: 1.0, 100: 2.0}))
    load.record(100, 1.0, prompt_rows=90)
    assert load.rows == pytest.approx(20.0)
    assert load.steady_rows == pytest.approx(2.0)


def path_of(**changes: Any) -> SplitPath:
    known: dict[str, Any] = {"costs": GPU, "row_bytes": 1152.0, "upload_rate": 7.5e6, "room": 256, "max_rows": 2048, "max_rounds": 64}
    return SplitPath(**{**known, **changes})


LINE = RowCosts({1: 0.001, 1001: 1.001})  # a row takes 1 ms


@pytest.mark.parametrize(("rate", "expected"), [(1.14e6, True), (1.16e6, False)])
def test_a_link_is_slower_if_a_row_takes_longer_on_it_than_at_the_server(rate: float, *, expected: bool) -> None:
    assert is_link_slower(path_of(costs=LINE, upload_rate=rate)) is expected


def test_what_else_the_server_computes_makes_it_slower() -> None:
    assert is_link_slower(path_of(costs=LINE, upload_rate=1e6))
    assert not is_link_slower(path_of(costs=LINE, upload_rate=1e6, steady_rows=64.0)), "192 rows take as long as 256"
    assert not is_link_slower(path_of(costs=LINE, upload_rate=1e6, steady_rows=500.0)), "a prompt gets a row of each batch"
    assert is_link_slower(path_of(costs=LINE, upload_rate=2e6, stages=2)), "two stages compute two batches at a time"


def test_the_time_of_a_batch_is_shared_by_all_its_rows() -> None:
    costs = RowCosts({1: 0.018, 257: 0.0436})  # 18 ms and 0.1 ms a row
    assert is_link_slower(path_of(costs=costs, upload_rate=6e6)), "a row takes 0.19 ms, and the server 0.17 ms"
    assert not is_link_slower(path_of(costs=costs, upload_rate=6e6, room=64)), "0.38 ms in small batches"


def test_a_prompt_is_cut_as_asked() -> None:
    path = path_of(steady_rows=4, load_rows=90)
    assert plan_prompt(2000, "whole", path).size == 2000
    assert plan_prompt(2000, 128, path).size == 128
    assert plan_prompt(100, 128, path).size == 100
    assert plan_prompt(2000, "whole", path_of(max_rows=512)).size == 512
    balanced = chunk_size(2000, costs=GPU, row_bytes=1152, upload_rate=7.5e6, load_rows=90, largest=256)
    assert plan_prompt(2000, "balanced", path).size == balanced.size
    known: dict[str, Any] = {"costs": GPU, "row_bytes": 1152, "upload_rate": 7.5e6, "load_rows": 4, "largest": 2048, "room": 256}
    assert plan_prompt(2000, "fastest", path).size == fastest(2000, is_merged=True, **known).size
    ends: dict[str, Any] = {"input_costs": line(0.001, 2e-4), "download_rate": 1e7}
    expected = fastest(2000, is_merged=True, computed=100, **known, **ends)
    assert plan_prompt(2000, "fastest", path_of(steady_rows=4, **ends), computed=100).size == expected.size


def test_the_chunks_on_the_way_cover_the_round_trip_and_keep_to_the_servers_limit() -> None:
    assert plan_prompt(2000, 128, path_of()) == PromptPlan(128, 8)
    assert plan_prompt(2000, 128, path_of(room=2048)) == PromptPlan(128, 9)
    assert plan_prompt(2000, 128, path_of(room=2048, round_trip=0.08)) == PromptPlan(128, 12)
    assert plan_prompt(2000, 128, path_of(room=2048, input_costs=line(0.0, 2e-4))) == PromptPlan(128, 6)  # the device is the slowest
    assert plan_prompt(2000, 16, path_of(round_trip=0.08, max_rounds=8)) == PromptPlan(16, 8)
    assert plan_prompt(2000, "whole", path_of(max_rounds=1)).max_unanswered == 1


@given(
    prompt=st.integers(1, 2048),
    rate=st.floats(1e5, 1e9),
    times=st.tuples(st.floats(0.0001, 0.05), st.floats(1e-6, 1e-2)),
    room=st.integers(48, 512),
    load=st.integers(0, 30),
)
def test_the_fastest_chunks_are_never_later_than_one_piece(
    prompt: int, rate: float, times: tuple[float, float], room: int, load: int
) -> None:
    setup, row = times
    costs = RowCosts({1: setup + row, 4096: setup + 4096 * row})
    plan = plan_prompt(prompt, "fastest", path_of(costs=costs, upload_rate=rate, room=room, steady_rows=load))
    one, chunks = (read_seconds(prompt, size, row=1152 / rate, costs=costs, room=room, load=load) for size in (prompt, plan.size))
    assert chunks <= one * (1 + 1e-6)


@pytest.mark.parametrize("chunking", ["fastest", "balanced", "whole", 7])
@given(prompt=st.integers(1, 3000), limits=st.tuples(st.integers(1, 600), st.integers(1, 64)))
def test_every_plan_keeps_to_the_limits(chunking: Chunking, prompt: int, limits: tuple[int, int]) -> None:
    max_rows, max_rounds = limits
    plan = plan_prompt(prompt, chunking, path_of(max_rows=max_rows, max_rounds=max_rounds))
    assert 1 <= plan.size <= min(prompt, max_rows)
    assert 1 <= plan.max_unanswered <= max_rounds


@pytest.mark.parametrize("chunking", ["fastest", "balanced", "whole", 1, 256])
def test_a_rule_or_a_number_says_how_a_prompt_is_cut(chunking: object) -> None:
    check_chunking(chunking)


@pytest.mark.parametrize("chunking", ["fast", 0, -1, True, 1.5, None, ()])
def test_anything_else_is_refused(chunking: object) -> None:
    expected = f'chunking: expected "fastest", "balanced", "whole" or a number above 0, got {chunking!r}'
    with pytest.raises(ConfigError, match=re.escape(expected)):
        check_chunking(chunking)
