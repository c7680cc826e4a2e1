"""Benches are found by their names, whatever room they are in."""

from __future__ import annotations

import pytest

from bench.__main__ import BENCHES, ON_REQUEST, module_of, split_words


def test_each_bench_has_a_module_in_one_of_the_rooms() -> None:
    assert module_of("stream") == "bench.timed.stream"
    assert module_of("trees") == "bench.counted.trees"
    assert all(module_of(name) for name in (*BENCHES, *ON_REQUEST))
    with pytest.raises(ValueError, match="got report"):
        module_of("report")


@pytest.mark.parametrize(
    ("words", "own", "options"),
    [
        ([], [], []),
        (["--quick"], ["--quick"], []),
        (["--quick", "stream", "wire"], ["--quick", "stream", "wire"], []),
        (["pair", "--prompts", "50"], ["pair"], ["--prompts", "50"]),
        (["--json", "pair", "--rtt-ms", "0", "30"], ["--json", "pair"], ["--rtt-ms", "0", "30"]),
    ],
)
def test_options_after_a_name_are_the_benchs(words: list[str], own: list[str], options: list[str]) -> None:
    assert [*map(list, split_words(words))] == [own, options]
