"""Make docs/benchmarks.md and the marked tables of other pages of the kept runs: ``python -m bench.page [--check]``.

The first page answers fifteen questions: a sentence and a table of at most seven rows each. Every figure on it is read from bench/results, so page
and runs agree; a test runs ``--check``. ``python -m bench.page NAME`` prints all rows of one kept run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from bench import page_tables
from bench.report import emit
from bench.runs import Run, figure, load, names
from bench.timed import fidelity_tables
from bench.timed.proxy import ROUNDS

__all__ = ["PAGE", "QUESTIONS", "Question", "main", "render"]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
HEAD = """# Benchmarks

How fast is streamco, and compared with what? The tables include the rows where streamco loses. Lower is better unless the table says otherwise. `python -m bench NAME` repeats a measurement, and `python -m bench.page NAME` prints all rows of a run in [bench/results](../bench/results). The machines have two shared, noisy cores, so trust ratios more than absolute figures. We repeat the papers' own measurements in [DSD](research/dsd.md), [DiSCo](research/disco.md), [Synera](research/synera.md), [HAT](research/hat.md) and [quality](research/quality.md).
"""


@dataclass(frozen=True)
class Question:
    """One question of the page.

    Attributes:
        title: the question.
        answer: a sentence or two, losing sides included.
        runs: the kept runs that it reads.
        heads: heads of the table's columns.
        rows: the table's cells.
    """

    title: str
    answer: str
    runs: tuple[str, ...]
    heads: tuple[str, ...]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        """Return the section in Markdown."""
        sources = " ".join(f"*`{name}`: {load(name).about}.*" for name in self.runs)
        rule = "|---|" + "--:|" * (len(self.heads) - 1)
        return "\n".join([f"## {self.title}", "", f"{self.answer} {sources}", "", _line(self.heads), rule, *map(_line, self.rows)]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _over(run: Run, case: str, metric: str, ours: str = "streamco") -> dict[str, str]:
    """Return each contender's share of ours, two digits after the point."""
    mine = run.value(case, metric, ours)
    return {who: f"{row.median / mine:.2f}" for (at, what, who), row in run.rows.items() if (at, what) == (case, metric)}


def first_word() -> Question:
    run = load("first")
    cases = ("a server over loopback", "a model on the device", "both: whichever is first")
    word, cpu = "from the start to: first word [ms]", "processor time until then [ms]"
    contenders = [(case, who) for case in cases for (at, what, who) in run.rows if (at, what) == (case, word)]
    rows = [
        [case, f"**{who}**" if who == "streamco" else who, *(f"{run.value(case, metric, who):.0f} ms" for metric in (word, cpu))]
        for case, who in contenders
    ]
    return Question(
        "How soon is the first word of a new program?",
        "The time from the start of the process to the first piece of the answer includes the interpreter, the imports, making a client and asking a question. "
        "The server answers at once. The model is the packaged one, whose file is already in memory.",
        ("first",),
        ("", "", "first word", "processor time"),
        rows,
    )


def streamed_event() -> Question:
    run, cpu = load("stream"), "CPU an event [us]"
    cases = ("bulk, one stream", "bulk, 100 streams", "one event a wake-up")
    shares = {case: _over(run, case, cpu) for case in cases}
    contenders = ("openai-python", "litellm", "aiohttp + msgspec")
    rows = [["**streamco**", *(f"**{figure(run.value(case, cpu))} us**" for case in cases)]]
    rows += [[who, *(f"{shares[case][who]} x" for case in cases)] for who in contenders]
    openai = [shares[case]["openai-python"] for case in cases]
    return Question(
        "What does a streamed event cost the client?",
        f"This is the CPU time from the socket to the fields that a caller reads. openai-python takes {openai[0]} times as much in bulk, {openai[1]} times "
        f"with 100 streams at once, and {openai[2]} times with one event per wake-up. A hand-written loop on top of aiohttp and msgspec is a little cheaper, "
        "because it makes no plan and no report.",
        ("stream",),
        ("", "in bulk", "100 streams at once", "one event per wake-up"),
        rows,
    )


def observers() -> Question:
    run, cpu = load("observing"), "CPU an event [us]"
    cases = [f"answers of {count} events" for count in (20, 200, 1000)]
    shares = {case: _over(run, case, cpu, "no observer") for case in cases}
    rows = [["no observer", *(f"{figure(run.value(case, cpu, 'no observer'))} us" for case in cases)]]
    rows += [[who, *(f"{shares[case][who]} x" for case in cases)] for who in ("metrics", "metrics and spans")]
    return Question(
        "What do metrics and traces cost?",
        f"This is the CPU time per event, for answers that arrive as fast as the socket delivers them. With metrics, each event of an answer of 200 events takes {figure(run.value(cases[1], cpu, 'metrics') - run.value(cases[1], cpu, 'no observer'))} us more. In real answers each event causes a wake-up, and takes {figure(load('stream').value('one event a wake-up', 'CPU an event [us]'))} us (`stream`).",
        ("observing",),
        ("", "20 events", "200 events", "1,000 events"),
        rows,
    )


def pace() -> Question:
    run = load("pacing")
    rates = ("5", "20", "100")
    rows = [
        [case, *(figure(run.value(f"{case}, {rate} tokens/s", "error p99 [ms]", "loop timer")) for rate in rates)]
        for case in ("asyncio, idle", "uvloop, idle", "asyncio, interpreter lock busy")
    ]
    smooth = figure(run.value("a pacer alone, 50 tokens/s", "time [us a token]", "pace smooth"))
    cost = figure(run.value("asyncio, 10,000 streams, 1 token/s each", "processor time [us a token]", "loop timer"))
    return Question(
        "How even is a pace?",
        "The table says how many milliseconds late the slowest token in a hundred is. No token is early. The event loop's own timers release the tokens; "
        f"with ten thousand streams that costs {cost} us of processor time per token. Computing the due times of smooth text takes {smooth} us per token.",
        ("pacing",),
        ("ms late", *(f"{rate} tokens/s" for rate in rates)),
        rows,
    )


def proxy() -> Question:
    run = load("proxy")
    contenders = [who for who in ("streamco", "aiohttp relay", "litellm") if ("1000 streams at once", "CPU an event [us]", who) in run.rows]
    many = "1000 streams at once"
    over = [run.value(f"{count} streams at once", "CPU an event, aiohttp relay = 1 [x]", "streamco") for count in (100, 1000)]
    share = run.value(many, "streams a core, litellm = 1 [x]", "streamco")
    options = run.head["options"]
    rounds = int(options[options.index("--rounds") + 1]) if "--rounds" in options else ROUNDS
    rows = [
        [
            f"**{who}**" if who == "streamco" else who,
            f"{run.value('one stream at a time', 'added to the first content [ms]', who):.2f} ms",
            *(f"{figure(run.value(f'{count} streams at once', 'CPU an event [us]', who))} us" for count in (100, 1000)),
            figure(run.value(many, "streams a core [streams]", who)),
            figure(run.value(many, "streams that did not end whole [streams]", who)),
        ]
        for who in contenders
    ]
    return Question(
        "What does the proxy add, and how many streams does a core carry?",
        f"We compare the proxy with a bare relay that only passes bytes on, and with litellm's proxy. An event takes {over[0]:.2f} times the relay's processor time with a hundred "
        f"streams at once, and {over[1]:.2f} times with a thousand. A core carries {share:.1f} times as many streams as with litellm. The streams per core "
        "are calculated for 20 events a second and answers of 200 events, from the processor time with a thousand streams at once.",
        ("proxy",),
        (
            "",
            "added to the first token",
            "an event, 100 streams",
            "an event, 1,000 streams",
            "streams a core",
            f"broken, of {2_000 * rounds:,} streams",
        ),
        rows,
    )


def failures() -> Question:
    run = load("failover")
    metrics = ("whole", "handed over", "error", "cut short without an error", "lost or repeated words")
    units = ("answers", "answers", "answers", "answers", "words")
    cells = [
        [figure(run.value("all", f"{what} [{unit}]", who)) for who in ("streamco", "openai")]
        for what, unit in zip(metrics, units, strict=True)
    ]
    return Question(
        "What happens when the network fails?",
        "We requested a thousand answers under random faults. The second server is struck as well, on one connection in five. streamco hands an answer "
        f"over, or says that it failed. openai-python, even with its retries, returns {cells[3][1]} answers that look whole but aren't.",
        ("failover",),
        ("", "streamco, two servers", "openai-python, one server"),
        [[what, *both] for what, both in zip(metrics, cells, strict=True)],
    )


def losses() -> Question:
    run, exact = load("migration"), load("lossless")
    rows = [
        ["simulated hand-overs", figure(run.value("simulated", "hand-overs")), figure(run.value("simulated", "answers that differ"))],
        [
            "real hand-overs, exact mode",
            figure(run.value("live, exact mode", "hand-overs")),
            figure(run.value("live, exact mode", "answers that differ")),
        ],
    ]
    for pair in ("Q4_0 for Q8_0", "Q2_K for Q8_0"):
        case = f"{pair}, exact mode"
        rows.append([f"speculated answers, {pair}", figure(exact.value(case, "answers")), figure(exact.value(case, "answers that differ"))])
    return Question(
        "Is a token lost or changed?",
        "We compare answers that were handed over, or drafted and verified, with the same model's uninterrupted answer, token for token. Outside exact mode, "
        "batches of different shapes round differently, and the texts may diverge where two tokens are almost equally likely.",
        ("migration", "lossless"),
        ("", "number", "different from the uninterrupted answer"),
        rows,
    )


def bytes_of_a_move() -> Question:
    run, sizes, metric = load("hand_over_bytes"), (4, 16, 64, 400), "bytes on the wire, mean [B]"
    rows = []
    for way, other in (("to a server, chat", "text"), ("to a server, completions", "text"), ("from a server, chat", "text")):
        cells = [_over(run, f"{way}, {size} tokens", metric, other)["streamco"] for size in sizes]
        rows.append([way, *(f"**{cell}**" for cell in cells)])
    packed = load("tokenpack").value("5000 Alpaca texts", "size of all, UTF-8 = 100 [%]")
    return Question(
        "How many bytes does a hand-over take?",
        f"Packed token ids are {100 - packed:.1f} % smaller than the text (the paper: 54.4 %). The table has a hand-over's bytes on the wire, including HTTP, relative to sending text.",
        ("hand_over_bytes", "tokenpack"),
        ("bytes relative to text", *(f"{size} tokens" for size in sizes)),
        rows,
    )


def savings() -> Question:
    run, cut = load("cost"), "cost cut [%]"
    rows, names = [], []
    for side, who in product(("server", "device"), ("streamco", "by default")):
        median = run.value(f"{side}-constrained, by service, all budgets", cut, who)
        best, worst = (
            next(
                (case, row.median)
                for (case, what, contender), row in run.rows.items()
                if case.startswith(f"{side}-constrained, {kind}") and contender == who and what == cut
            )
            for kind in ("best", "worst")
        )
        if who == "streamco":
            names.append(best[0].partition("best: ")[2])
        label = f"**{side} spared, by default**" if who == "by default" else f"{side} spared, all can continue"
        rows.append([label, f"{median:.0f} %", f"{best[1]:.0f} %", f"{worst[1]:.2f} %"])
    counts = [
        what for _, what, who in run.rows if who == "streamco" and what.startswith("of ") and "settings, those that cost more" in what
    ]
    settings = sum(int(what.split()[1]) for what in counts)
    return Question(
        "What do planned hand-overs save?",
        f"The table shows how much planned hand-overs save, as a share of the cost of whole answers (money and energy together). It covers {settings:,} settings of 29 "
        f"services, 3 phones and 11 budgets, in virtual time. "
        f'"All can continue" assumes that every service can continue an answer and that any model is good enough. The default client usually saves '
        f"hardly anything, because few providers can continue an answer, and by default none is moved to a weaker model ([by service]"
        f"(research/disco.md#cost-figure-7)). If all can continue, the best settings are {names[0]} (server spared) and {names[1]} (device spared).",
        ("cost",),
        ("higher is better", "median service", "best setting", "worst setting"),
        rows,
    )


def real_pair() -> Question:
    run, rate, ratio = load("pair"), "rate [tokens/s]", "rate over the stream's [x]"
    rows = []
    for link, label in {"loopback": "loopback", "rtt 60 ms": "round trip 60 ms"}.items():
        for kind, text in {"code, 50 prompts": "code", "prose, 50 prompts": "prose"}.items():
            case = f"{kind}, Q4_0, {link}"
            times = [f"{run.value(case, ratio, who):.2f}" for who in ("streamco", "drafts alone", "bound")]
            rows.append([f"{text}, {label}", f"**{times[0]}**", times[1], times[2], f"{run.value(case, rate, 'stream'):.1f} tokens/s"])
    return Question(
        "Is speculation faster on one small machine?",
        "It is faster on code, but not on prose. Qwen2.5-Coder 0.5B drafts and 1.5B verifies, on one core each. The table has the tokens a second relative to "
        "the same server's plain stream. *Bound* counts only drafting, verification and the link.",
        ("pair",),
        ("higher is better", "streamco", "drafts alone", "bound", "the stream"),
        rows,
    )


def large_server() -> Question:
    run, ratio = load("imposed"), "rate over the stream's [x]"
    rows = []
    for rtt in (30, 60):
        for kind, text in {"humaneval, 25 prompts": "code", "alpaca, 25 prompts": "prose"}.items():
            case = f"{kind}, RTT {rtt} ms"
            times = [f"{run.value(case, ratio, who):.2f}" for who in ("streamco", "streamco, chains", "always drafts, trees")]
            rows.append([f"{text}, round trip {rtt} ms", f"**{times[0]}**", times[1], times[2]])
    return Question(
        "And with a 70B model at the server?",
        "We replayed the same pair's recorded tokens, and slowed the server down to the step times of Llama-2-70B on two A100. Client, server and protocol are "
        "real.",
        ("imposed",),
        ("higher is better, relative to the stream", "streamco", "chains, no trees", "always drafts"),
        rows,
    )


def load_of_drafts() -> Question:
    run, times, rates = load("verifier"), "verdict p95 [ms]", "verdicts [1/s]"
    few, many = ("1 devices", "32 devices", "128 devices"), ("32 devices", "64 devices", "128 devices")
    rows, growth = [], []
    for budget in (0.3, 0.6, 0.9):
        case = f"large, alternating, budget {budget}"
        late = [run.value(case, times, who) for who in few]
        growth.append(late[-1] / late[1])
        rows.append(
            [f"budget {budget}", *(f"{each:.0f} ms" for each in late), " / ".join(f"{run.value(case, rates, who):.0f}" for who in many)]
        )
    return Question(
        "How long do verdicts take as devices are added?",
        "The table has the 95th percentile of the time to a verdict, at a round trip of 60 ms, with a server slowed down to the step times of Llama-2-70B on "
        'four A100. Past its limit the server refuses new sessions with "overloaded, retry after". Devices then wait for a place, and verdicts with 128 devices take '
        f"{min(growth):.2f} to {max(growth):.2f} times as long as with 32.",
        ("verifier",),
        (
            "share of drafts that is verified",
            *(who.replace("1 devices", "1 device") for who in few),
            "verdicts/s with 32 / 64 / 128 devices",
        ),
        rows,
    )


def split() -> Question:
    first, later = load("split_ttft"), load("split_live")
    rows = []
    for size in (128, 2000):
        case = f"7B, {size} tokens"
        cells = [f"{first.value(case, 'time to first token [of U-shape]', who):.2f}" for who in ("fastest", "whole")]
        rows.append([f"first token, prompt of {size:,} tokens", f"**{cells[0]}**", f"{cells[1]} (one piece)"])
    for rtt in (10, 80):
        share = later.value(f"7B, RTT {rtt} ms", "time between tokens [of the U-shape's]", "confident")
        rows.append([f"between tokens, round trip {rtt} ms", f"**{share:.2f}**", "1 (no drafts)"])
    return Question(
        "What do chunks and drafts bring a split model?",
        "The figures are times relative to those of the plain U-shape, with a server slowed down to a 7B model's times.",
        ("split_ttft", "split_live"),
        ("", "streamco", "without"),
        rows,
    )


def simulator() -> Question:
    unseen, seen = errors_of("fidelity_unseen"), errors_of("fidelity")
    every = [share for shares in unseen.values() for share in shares]
    rows = [
        [name, within_a_tenth(unseen[name]), percent(max(unseen[name])), within_a_tenth(seen[name])] for name in unseen if name in SHOWN
    ]
    return Question(
        "Does the simulator say what the live system does?",
        f"On loads, prompts and a draft model that we didn't use while building it, {within_a_tenth(every)} figures are within a tenth of "
        "the live ones. The others are from a full server, where refusals make every live run different.",
        ("fidelity_unseen", "fidelity"),
        ("", "within a tenth", "farthest off", "within a tenth, on loads used to build it"),
        rows,
    )


SHOWN = ("TTFT", "TBT, mean", "throughput")


def errors_of(name: str) -> dict[str, list[float]]:
    """How far the simulator is off in each load of a kept run, by figure."""
    off: dict[str, list[float]] = {}
    for of_load in fidelity_tables.deviations_of(load(name)).values():
        for figure_name, deviation in of_load.items():
            off.setdefault(figure_name, []).append(abs(deviation.off))
    return off


def within_a_tenth(shares: Sequence[float]) -> str:
    return f"{sum(share <= 0.1 for share in shares)} of {len(shares)}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def price_list() -> Question:
    run = load("row_costs")
    case = next(case for case, what, _ in run.rows if what == "error of a batch's time [share]")
    errors = {who: row for (at, what, who), row in run.rows.items() if (at, what) == (case, "error of a batch's time [share]")}
    return Question(
        "Does the server know what a draft will cost it?",
        "The table has the error with which the server's price list of rows predicts the time of live batches of a 1.5B model on a CPU, where four rows cost "
        "twice as much as one.",
        ("row_costs",),
        ("", "median", "lowest", "highest"),
        [[who, f"{100 * row.median:.1f} %", f"{100 * row.min:.1f} %", f"{100 * row.max:.1f} %"] for who, row in errors.items()],
    )


QUESTIONS = (
    first_word,
    streamed_event,
    observers,
    proxy,
    pace,
    failures,
    losses,
    bytes_of_a_move,
    savings,
    real_pair,
    large_server,
    price_list,
    load_of_drafts,
    split,
    simulator,
)


def render() -> str:
    """Return the whole page."""
    return HEAD + "".join(f"\n{question()}" for question in QUESTIONS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the pages, or print a run; 1 if a page isn't what the runs say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("name", nargs="?", choices=[*names(), None], metavar="NAME", help="print this kept run, and write nothing")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if the page is another one")
    options = parser.parse_args(arguments)
    if options.name:
        run = load(options.name)
        print(f"{options.name}: {run.about}")
        emit(run.rows.values(), json_lines=False)
        return 0
    pages = {PAGE: render(), **page_tables.render()}
    if options.check:
        return int(any(path.read_text(encoding="utf-8") != text for path, text in pages.items()))
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
