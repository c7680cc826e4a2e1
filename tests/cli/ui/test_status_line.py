from __future__ import annotations

import pytest

from streamco.cli.ui.status_line import Progress, fitted
from streamco.core.report_summary import Figure


def test_before_the_first_token_the_line_says_who_is_waited_for_and_since_when() -> None:
    progress = Progress(now=10.0)
    assert progress.waiting_line(["device", "server"], now=10.0) == "⠋ waiting for device and server · 0.0 s · Ctrl-C stops"
    assert progress.waiting_line([], now=11.26).endswith("waiting for an answer · 1.3 s · Ctrl-C stops")


def test_the_spinner_turns_with_the_clock() -> None:
    progress = Progress(now=0.0)
    assert len({progress.waiting_line([], now=step / 10)[0] for step in range(10)}) == 10


def test_after_the_first_token_the_line_says_who_writes_how_soon_how_fast_and_how_much() -> None:
    progress = Progress(now=10.0)
    for step in range(11):
        progress.record("device", now=10.05 + step * 0.02)
    assert progress.tokens == 11
    assert progress.rate == pytest.approx(50.0)
    assert progress.line(now=10.3, cost="$0")[2:] == "device · first token 50 ms · 50.0 tokens/s · 11 tokens · $0 · Ctrl-C stops"


def test_what_became_of_drafts_stands_before_the_cost() -> None:
    progress = Progress(now=0.0)
    progress.record("device", now=0.5)
    assert " · 1 token · 72% of drafts accepted · $0 · " in progress.line(now=0.5, drafts=[Figure("72% of drafts accepted", 4)], cost="$0")


def test_one_token_has_no_rate() -> None:
    progress = Progress(now=0.0)
    progress.record("device", now=0.5)
    assert progress.rate is None
    assert progress.line(now=0.5)[2:] == "device · first token 500 ms · 1 token · Ctrl-C stops"


def test_tokens_in_one_burst_have_no_rate_rather_than_an_infinite_one() -> None:
    progress = Progress(now=0.0)
    for _ in range(5):
        progress.record("device", now=0.5)
    assert progress.rate is None


def test_several_makers_are_counted_apart() -> None:
    progress = Progress(now=0.0)
    for source, count in (("device", 12), ("server", 30)):
        for _ in range(count):
            progress.record(source, now=1.0)
    assert "device 12 + server 30" in progress.line(now=1.0)


def test_a_silence_is_counted_in_the_line() -> None:
    progress = Progress(now=0.0)
    progress.record("device", now=1.0)
    assert "nothing for" not in progress.line(now=2.9)
    assert " · nothing for 14 s · " in progress.line(now=15.0)


def split_answer() -> Progress:
    progress = Progress(now=0.0)
    for step in range(41):
        progress.record("split", now=0.338 + step * 0.059)
    return progress


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (None, "split · first token 338 ms · 16.9 tokens/s · 41 tokens · 1.36 tokens a trip · $0 · Ctrl-C stops"),
        (82, "split · first token 338 ms · 16.9 tokens/s · 41 tokens · 1.36 tokens a trip · $0"),
        (79, "split · first token 338 ms · 16.9 tokens/s · 41 tokens · 1.36 tokens a trip"),
        (59, "split · 16.9 tokens/s · 41 tokens · 1.36 tokens a trip"),
        (45, "split · 16.9 tokens/s · 1.36 tokens a trip"),
        (30, "split · 16.9 tokens/s"),
        (10, "split"),
        (3, "split"),
    ],
)
def test_what_a_narrow_terminal_has_no_room_for_is_left_out(width: int | None, line: str) -> None:
    found = split_answer().line(now=2.8, drafts=[Figure("1.36 tokens a trip", 4)], cost="$0", width=width)
    assert found[2:] == line


def test_a_silence_is_said_and_how_to_end_it_before_all_else() -> None:
    drafts = [Figure("1.36 tokens a trip", 4)]
    assert split_answer().line(now=12.7, drafts=drafts, width=50)[2:] == "split · nothing for 10 s · Ctrl-C stops"
    assert split_answer().line(now=12.7, drafts=drafts, width=30)[2:] == "split · nothing for 10 s"


def test_a_narrow_line_still_says_what_is_waited_for() -> None:
    progress = Progress(now=0.0)
    assert progress.waiting_line(["device", "server"], now=1.0, width=50)[2:] == "waiting for device and server · 1.0 s"
    assert progress.waiting_line(["device", "server"], now=1.0, width=20)[2:] == "waiting for device and server"


def test_of_figures_with_one_rank_the_last_is_left_out_first() -> None:
    figures = [Figure("aaa"), Figure("bbb", 1), Figure("ccc", 1), Figure("aaa")]
    assert fitted(figures) == "aaa · bbb · ccc · aaa"
    assert fitted(figures, 20) == "aaa · bbb · aaa"
    assert fitted(figures, 1) == "aaa · aaa"
    assert fitted([], 1) == ""


def test_wide_characters_count_twice() -> None:
    assert fitted([Figure("端末"), Figure("x", 1)], 8) == "端末 · x"
    assert fitted([Figure("端末"), Figure("x", 1)], 7) == "端末"
