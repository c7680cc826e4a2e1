"""The sentences of docs/research/hat.md say what the kept results say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from math import ceil, exp, floor, log
from statistics import NormalDist
from typing import Any

import pytest

from experiments.hat import (
    A6000,
    BASELINES,
    DECODES,
    FRAMEWORKS,
    ONE_STAGE,
    PARTS,
    STAGE_AT,
    TABLE4,
    TABLE5,
    TBT_LESS_AT,
    TBT_RISE,
    TTFT_AT,
    batch_growth,
    chunked_steps,
    less_than,
)
from experiments.kept import load
from experiments.tables import Means, means_of
from streamco.policies.chunking import NEARLY, SMALLEST, chunk_size
from streamco.profiles.row_costs import RowCosts
from streamco.sim.split.kind import batch_seconds
from tests.support.words import page_words, span

PAGE = "docs/research/hat.md"
TTFT, TBT = "ttft_mean", "tpot_mean"
SPEC, NEWS = TABLE5
SHARED = f"{SPEC}, answers share a device"
U_SHAPE, U_MEDUSA, U_SARATHI, HAT = FRAMEWORKS
LAST = "HAT, last row only"
ROWS = {"hat_figure6": 351, "hat_figure7": 1037}  # the paper's mean prompts


@cache
def figures(name: str, figure: str = TTFT) -> Means:
    """Return a figure of an experiment; what is compared is the setting that its file sweeps last."""
    results = load(name)
    return means_of(results["scenarios"], [*results["sweep"]][-1], figure)


def settings(name: str) -> Any:
    return load(name)["settings"]


def world(name: str) -> Any:
    return settings(name)["world"]


def whole(value: float) -> str:
    """Return the nearest whole number; a half counts as one, unlike in Python."""
    return f"{floor(value + 0.5):,}"


def both(values: list[float], digits: int = 0) -> str:
    return " and ".join(f"{each:,.{digits}f}" for each in values)


def per_cent_less(values: Mapping[str, float], one: str, other: str) -> float:
    return 100 * (1 - values[one] / values[other])


def link_seconds(name: str, rows: int, way: str) -> float:
    """Return the mean seconds of so many states on a link whose rate is uniform between its bounds."""
    low, high = world(name)["link"][way]
    return float(rows * world(name)["state_bytes"] * log(high / low) / (high - low) / 1e6)


def middle_seconds(name: str, rows: int) -> float:
    """Return the seconds up and down with rates in the middle of their bounds."""
    link = world(name)["link"]
    return float(sum(rows * world(name)["state_bytes"] * 2e-6 / sum(link[way]) for way in ("up_mb_s", "down_mb_s")))


def ratios(data: str, *, of_ttft: bool) -> dict[str, float]:
    """Return our time over the paper's in Table V, by part."""
    ours = figures("hat_table5", TTFT if of_ttft else TBT)[data,]
    return {part: 1000 * ours[part] / paper[not of_ttft] for part, paper in zip(PARTS, TABLE5[data], strict=True)}


def shares(data: str) -> dict[str, tuple[float, float]]:
    """Return the paper's and our time between tokens in Table V over the U-shape's, by part."""
    ours, paper = figures("hat_table5", TBT)[data,], dict(zip(PARTS, TABLE5[data], strict=True))
    return {part: (paper[part][1] / paper[PARTS[0]][1], ours[part] / ours[PARTS[0]]) for part in PARTS}


def rise(framework: str) -> tuple[float, float]:
    """Return by how many per cent the time between tokens rises with the rate, in the paper and here."""
    low, high, paper = TBT_RISE["hat_figure6"]
    tbt = figures("hat_figure6", TBT)
    return paper[FRAMEWORKS.index(framework)], 100 * (tbt[high,][framework] / tbt[low,][framework] - 1)


def last_row_gains() -> list[float]:
    return [per_cent_less(each, LAST, HAT) for name in ROWS for each in figures(name).values()]


def live_costs() -> RowCosts:
    return RowCosts({rows: milliseconds / 1e3 for rows, milliseconds in world("split_ttft")["server"]["row_costs_ms"]})


def balanced(prompt: int) -> int:
    """Return the rows of equation 3's first chunk in the live split, before there is load."""
    live = world("split_ttft")
    return chunk_size(prompt, costs=live_costs(), row_bytes=live["state_bytes"], upload_rate=1e6 * live["link"]["up_mb_s"][0]).size


def short_sentences() -> Iterator[str]:
    (rate, ttft), (slow, tbt) = TTFT_AT["hat_figure6"], TBT_LESS_AT["hat_figure6"]
    sooner = [whole(less_than(each, U_SHAPE)) for each in (dict(zip(FRAMEWORKS, ttft, strict=True)), figures("hat_figure6")[rate,])]
    ours = [whole(less_than(figures("hat_figure6", TBT)[slow,], each)) for each in BASELINES]
    beside = "as in the paper" if ours[0] == whole(tbt[0]) else f"against {whole(tbt[0])} %"
    yield f"HAT's time between tokens is {ours[0]} % below the U-shape's, {beside}."
    yield f"Its first token is {sooner[1]} % sooner, against {sooner[0]} %."
    later = [100 * (1000 * figures("hat_figure6")[rate,][name] / paper - 1) for name, paper in zip(FRAMEWORKS, ttft, strict=True)]
    yield f"On SpecBench first tokens are {span(later)} % later here in all frameworks."
    names = f"SpecBench, {slow} requests/s: HAT's TBT below the U-shape's / U-Medusa's / U-Sarathi's"
    yield f"| {names} | {' / '.join(map(whole, tbt))} % | {' / '.join(ours)} % |"
    yield f"| SpecBench, {rate} requests/s: HAT's TTFT below the U-shape's | {sooner[0]} % | {sooner[1]} % |"
    low, high, _ = TBT_RISE["hat_figure6"]
    rises = [" / ".join(map(whole, each)) for each in zip(rise(U_SHAPE), rise(U_MEDUSA), strict=True)]
    yield f"| SpecBench: rise of TBT from {low} to {high} requests/s, U-shape / U-Medusa | {rises[0]} % | {rises[1]} % |"
    rate, paper7 = TTFT_AT["hat_figure7"]
    longer = [each for of_ttft in (True, False) for each in ratios(NEWS, of_ttft=of_ttft).values()]
    longer += [1000 * figures("hat_figure7")[rate,][name] / paper for name, paper in zip(FRAMEWORKS, paper7, strict=True)]
    yield f"Our times are {span(longer, 1)} times as long"
    off = max(abs(ours - paper) for paper, ours in shares(NEWS).values())
    yield f"The ratios of Table V hold within {ceil(100 * off) / 100:g}."
    pieces = [1000 * figures("hat_chunks")[4, rows, 5, "any number"]["whole"] for rows in ("last", "all")]
    chunks = min(1000 * each for case, ttft in figures("hat_chunks").items() if case[1:3] == ("last", 5) for each in ttft.values())
    tokens = settings("hat_chunks")["workload"]["prompt"]
    yield f"the U-shape's first token of {tokens:,} tokens comes after {pieces[0]:,.0f} ms instead of {pieces[1]:,.0f},"
    yield f"and with chunks as well after {chunks:,.0f}."
    yield f"so with four stages HAT itself gains {span(last_row_gains())} %."
    late = max(ttft["eq. 3"] / ttft["whole"] for case, ttft in figures("hat_chunks").items() if case[3] == "two")
    yield f"With two, equation 3's chunks take up to {late:.1f} times as long as the whole prompt in one piece."
    worst = max(ttft["eq. 3, covering"] / min(ttft.values()) for ttft in figures("split_ttft").values())
    yield f"and the first token {worst:.1f} times as late as the best."


def assumed_sentences() -> Iterator[str]:
    rows = [1000 * batch_seconds(A6000)(each, 0, 1) for each in (1, 2048)]
    assert A6000.time_factor == 30 / 32
    yield f"times 30/32; {rows[0]:.1f} ms for one row, {rows[1]:.0f} ms for 2,048"
    small, large = ([mean for mean, _ in STAGE_AT[name][1][2:]] for name in ROWS)
    yield f"stages of {span(small, 1)} ms with four of them: {span([4 * each for each in small])} ms"
    yield f"the paper has {span(large, 1)} ms in Figure 8, which is {sum(large) / sum(small):.2f} times its 7B"
    yield f"| Vicuna-13B | {world('hat_figure7')['server']['time_factor']:g} times the 7B's"
    xavier, orin = world("hat_figure6")["device_pools"]
    ones, others = ([f"{pool[f'{name}_ms']:g}" for name in ("input", "head", "draft", "heads")] for pool in (orin, xavier))
    yield "Orin: {} ms for the two input layers, {} for the head, {} for the draft layer, {} for Medusa's heads;".format(*ones)
    paces = [pace for pool in (orin, xavier) for pace in pool["paces"]]
    yield "Xavier {}, {}, {} and {}; ".format(*others) + f"modes are factors of {min(paces):g} to {max(paces):g}"
    yield f"| {orin['row_ms']:g} ms a row on an Orin (the paper: 0.09 s for 2,000 tokens), {xavier['row_ms']:g} on a Xavier"
    link = world("hat_figure6")["link"]
    bounds = " and ".join(f"{low:g} to {high:g}" for low, high in (link["up_mb_s"], link["down_mb_s"]))
    yield f"uniform in {bounds} MB/s, drawn for each request; round trip {link['rtt_ms']:g} ms"
    prompts = [settings(name)["workload"]["prompt"] for name in ROWS]
    yield f"cut at {both([each['most'] for each in prompts])}"
    laws = [each["log_normal"] for each in prompts]
    tails = [law["median"] * exp(NormalDist().inv_cdf(0.9) * law["sigma"]) for law in laws]
    yield f"90th percentiles are {both(tails)}, against 891 and 1,772"
    workload = settings("hat_figure6")["workload"]
    yield f"| answers | {workload['output']} tokens each |"
    second, third = (100 * workload["acceptance"][name] for name in ("second", "third"))
    yield f"second or third choice in {second + third:.0f} % of the cases, as measured on our own; {both([second, third])} % are a guess"
    rate, pace = settings("hat_table5")["workload"]["arrivals"]["poisson_per_s"], TABLE5[SPEC][0][1]
    busy, count = rate * workload["output"] * pace / 1000, sum(pool["count"] for pool in (orin, xavier))
    yield f"| {rate:g} answers a second of {workload['output']} tokens at the paper's {pace:.0f} ms keep {busy:.0f} busy on {count} devices"
    rates = [{settings(f"hat_figure{each}")["workload"]["arrivals"]["poisson_per_s"] for each in pair} for pair in ((9, 11), (10, 12))]
    yield "| SpecBench {:g}, CNN/DM {:g} a second |".format(*(each for of in rates for each in of))
    rooms = [load(name)["sweep"]["framework"][U_SARATHI]["policy.room"] for name in ROWS]
    yield f"room {both(rooms)} for verifications and prompt chunks together"
    yield f"float16 states of {both([world(name)['state_bytes'] for name in ROWS])} bytes"


def figure1_sentences() -> Iterator[str]:
    times, link = (figures("hat_figure1", name)[()] for name in (TTFT, "prompt_link"))
    near, far = (100 * link[case] / times[case] for case in ("U-shape, 128 tokens", "U-shape, 2048 tokens"))
    yield f'The link\'s share is {near:.0f} % for 128 tokens; the paper has "more than 80 %". It is {far:.0f} % for 2,048 tokens;'
    saved = {chunk: chunked_steps(2048, 2048)[0] - chunked_steps(2048, chunk)[0] for chunk in (1024, 512, 256, 128, 64, 32)}
    yield f"The paper saves most with the smallest chunks; here {max(saved, key=lambda chunk: saved[chunk])} rows save most in all."
    yield f"A batch of {DECODES + 32} rows costs {batch_growth(32):.1f} % more than one of {DECODES + 1} here. So {2048 // 32} of them"


def server_and_device() -> float:
    """Return the seconds of the mean prompt at the server and on the fastest device in its fastest mode."""
    rows, pools = ROWS["hat_figure6"], world("hat_figure6")["device_pools"]
    device = min(pool["input_ms"] + pool["head_ms"] + pool["row_ms"] * (rows - 1) for pool in pools)
    return float(batch_seconds(A6000)(rows, 0, 1) + device / 1e3)


def rate_sentences() -> Iterator[str]:
    rows, size = ROWS["hat_figure6"], world("hat_figure6")["state_bytes"]
    up, down = (1000 * link_seconds("hat_figure6", rows, way) for way in ("up_mb_s", "down_mb_s"))
    yield f"*TTFT.* {rows} rows of {size:,} bytes take {up:.0f} ms up and {down:.0f} ms down on average at the stated rates."
    paper = TTFT_AT["hat_figure6"][1][0]
    left = f"{paper - up - down:.0f} ms for server and device, which need at least {1000 * server_and_device():.0f}."
    yield f"The paper's {paper:.0f} ms leave {left}"
    rate, stages = STAGE_AT["hat_figure6"]
    deviation, mean = (figures("hat_figure6", f"stage_{name}")[rate,] for name in ("deviation", "mean"))
    ours = both([1000 * deviation[each] for each in (U_SHAPE, U_MEDUSA)], 1)
    yield f"The paper's stages deviate by {span([each for _, each in stages[:2]])} ms, ours by {ours}."
    tree = 1000 * (mean[U_MEDUSA] - mean[U_SHAPE])
    yield f"A tree of eight rows costs our server {tree:.1f} ms a stage, the paper's {stages[1][0] - stages[0][0]:.1f}."
    rows, size = ROWS["hat_figure7"], world("hat_figure7")["state_bytes"]
    fastest = world("hat_figure7")["link"]["up_mb_s"][1]
    yield f"*Why the times differ.* {rows:,} rows of {size:,} bytes are {rows * size / 1e6:.1f} MB."
    times = rows * size / fastest / 1e6, link_seconds("hat_figure7", rows, "up_mb_s")
    yield f"fastest uplink, {fastest:g} MB/s, they take {times[0]:.2f} s, and on average over its range {times[1]:.2f} s."
    ways = sum(1000 * link_seconds("hat_figure10", 128, way) for way in ("up_mb_s", "down_mb_s"))
    limit = settings("hat_figure10")["policy"]["prefill_sla_ms"]
    yield f"In Figure 10 the link alone takes {ways:.0f} of the {limit:g} ms for 128 tokens both ways."
    rooms = [load(f"hat_figure{each}")["sweep"]["framework"][U_SARATHI]["policy.room"] for each in (9, 10)]
    yield f"its one stage reads at most {rooms[0]} ({rooms[1]}) rows a batch"
    yield f"The paper's Figure 11 shows the same ({ONE_STAGE['hat_figure11'][0][2]:,.0f} ms)."


def part_sentences() -> Iterator[str]:
    tbt = [figures(f"hat_figure{each}", TBT) for each in (11, 12)]
    falls = [span([100 * (1 - each[4,][name] / each[1,][name]) for each in tbt]) for name in (U_SHAPE, HAT)]
    yield f"from one stage to four by {falls[0]} % for the U-shape, and by {falls[1]} % for HAT."
    speedups = {data: each[U_SHAPE] / each[HAT] for (data,), each in figures("hat_table4", TBT).items()}
    yield f"HAT's falls short of the paper's by {both([100 * (1 - speedups[data] / TABLE4[data][HAT][1]) for data in TABLE4])} %."
    (orin,) = world("hat_table4")["device_pools"]
    yield f"steps of {orin['input_ms'] + orin['draft_ms'] + orin['head_ms']:.0f} ms count fully."
    width = world("hat_table4")["state_bytes"] // 2
    heads = 4 * (width**2 + width * 32_000)  # Medusa's: a square matrix and a matrix to the vocabulary each
    yield f"heads are {heads / 1e6:.0f} million parameters, {2 * heads / 204e6:.1f} ms at an Orin's bandwidth in every round."
    (paper, ours), (paper_news, ours_news) = (shares(data)["PC"] for data in (SPEC, NEWS))
    yield f"({ours:.2f} against {paper:.2f} on SpecBench)"
    yield f"On CNN/DM, where they disturb more, it is {ours_news:.2f} against {paper_news:.2f}."
    shared, own = (figures("hat_table5", TBT)[data,][PARTS[-1]] for data in (SHARED, SPEC))
    yield f"HAT's time between tokens is {100 * (shared / own - 1):.0f} % longer."


def chunk_sentences() -> Iterator[str]:
    found = figures("hat_chunks")
    two, free = ([found[4, rows, 80, name]["eq. 3"] for rows in ("all", "last")] for name in ("two", "any number"))
    yield f"the longer the round trip: {span(two, 1)} s instead of {span(free, 1)} at 80 ms."
    near = [ttft for case, ttft in found.items() if case[1:] == ("last", 5, "covering")]
    few = [1000 * each[size] for each in near for size in each if size in ("128 rows", "64 rows", "32 rows", "eq. 3")]
    yield f"hardly matters from 128 rows down: {span(few)} ms, against {1000 * near[0]['whole']:,.0f} in one piece."
    later = [100 * (ttft["fastest"] / ttft["eq. 3"] - 1) for case, ttft in found.items() if case[3] != "two"]
    yield f"With enough chunks in flight the first token is {span(later)} % later there than with equation 3."


def live_sentences() -> Iterator[str]:
    live, found = world("split_ttft"), figures("split_ttft")
    assert live == world("split_tbt")
    (pool,), size, up, down = live["device_pools"], live["state_bytes"], live["link"]["up_mb_s"][0], live["link"]["down_mb_s"][0]
    row = (live_costs().seconds(2048) - live_costs().seconds(2)) / 2046
    base, sent = live_costs().seconds(2) - 2 * row, size / up / 1e6
    yield f"states of {size:,} bytes. The server has a 7B model's times, {1000 * base:.0f} ms and {1000 * row:.2f} ms a row, in one stage."
    yield f"The link has {up:g} MB/s up and {down:g} down."
    drafting = load("split_tbt")["sweep"]["drafting"]
    longest = "/".join({str(each["policy.max_draft"]) for each in drafting.values() if "policy.max_draft" in each})
    yield f"Time between tokens, windows of {longest} tokens, by the acceptance of a draft token."
    merged = [100 * (each["fastest, not merged"] / each["fastest, covering"] - 1) for each in found.values()]
    yield f"the first token would be later, with the planned chunks by {span(merged)} %."
    yield f"A row takes {1000 * sent:.3f} ms on the link and {1000 * row:.3f} at the server."
    yield f"only when {1000 * base:.0f} ms have been gained at {1000 * (sent - row):.4f} ms a row: {balanced(2000)} rows."
    yield f"takes the largest chunks within {100 * (NEARLY - 1):.0f} % of the best."
    yield f"The device takes {pool['row_ms']:g} ms a row, as long as the link"
    planned = [each["fastest, covering"] / each["whole, all rows back"] for (_, rtt), each in found.items() if rtt == 10]
    yield "where {:.2f}, {:.2f}, {:.2f} and {:.2f} are now.".format(*planned)


def claims() -> Iterator[tuple[str, bool]]:
    """Yield sentences that compare, and whether it is so."""
    spec = ratios(SPEC, of_ttft=False)
    far = [part for part in PARTS if abs(spec[part] - 1) > 0.2]
    yield "Of the six rows for SpecBench, all but one (chunks alone) are within 20 % of the paper's times between tokens.", far == ["PC"]
    load_less = all(ours < paper for paper, ours in map(rise, (U_MEDUSA, U_SHAPE)))
    yield "U-Medusa and the U-shape suffer less from load here than in the paper.", load_less
    yield "With small states its first chunk can be three quarters of the prompt", round(4 * balanced(1024) / 1024) == 3
    found = figures("hat_chunks")
    near = max(ttft["eq. 3"] / min(ttft.values()) for case, ttft in found.items() if case[3] != "two")
    yield "With the paper's states it is near the best.", near < 1.02
    yield "The paper's 3.2 s on the link mean rates above the middle of its ranges.", middle_seconds("hat_figure1", 2000) > 3.2
    up = 1000 * link_seconds("hat_figure6", ROWS["hat_figure6"], "up_mb_s")
    yield "HAT's 384 ms are below the upload alone.", TTFT_AT["hat_figure6"][1][3] < up
    size, fastest = world("hat_figure7")["state_bytes"], world("hat_figure7")["link"]["up_mb_s"][1]
    yield "Its TTFT of 1,027 ms is below the first", TTFT_AT["hat_figure7"][1][3] < ROWS["hat_figure7"] * size / fastest / 1e3
    latest = all(max(each, key=lambda name: each[name]) == U_SARATHI for each in (figures(f"hat_figure{of}")[1,] for of in (11, 12)))
    in_paper = max(ONE_STAGE["hat_figure11"][0]) == ONE_STAGE["hat_figure11"][0][FRAMEWORKS.index(U_SARATHI)]
    yield "With one stage U-Sarathi has the latest first token, in the paper and here.", latest and in_paper
    alone, (tokens, speedup) = figures("hat_table4", TBT)[SPEC,][U_SHAPE], TABLE4[SPEC][U_MEDUSA]
    rows = sum(link_seconds("hat_table4", 8 - 1, way) for way in ("up_mb_s", "down_mb_s"))
    left = 1000 * ((tokens / speedup - 1) * alone - rows)
    yield f"The paper's {speedup:.2f} leave no time for them.", left < world("hat_table4")["device_pools"][0]["heads_ms"]
    gains = [per_cent_less(figures("hat_table5", TBT)[data,], "SD, PC, PD (HAT)", "SD, PC") for data in (SPEC, SHARED)]
    yield "Parallel drafting hardly helps, because the processor has other answers to work on.", 3 * gains[1] < gains[0]
    steps = found[4, "all", 80, "two"]
    yield "On four stages it is the smallest one", steps["eq. 3"] > steps["32 rows"] and SMALLEST < 32
    pairs = [(found[*case[:3], "covering"], found[*case[:3], "any number"]) for case in found]
    same = all(abs(ours[size] / free[size] - 1) < 0.001 for ours, free in pairs for size in free)
    yield "(*covering*) the first token comes as soon as without a limit.", same
    live = figures("split_ttft")
    short = [each for (tokens, _), each in live.items() if tokens == 128]
    yield (
        "So 128 tokens in two chunks are later than in one piece",
        all(each["eq. 3, covering"] > each["whole, last row"] for each in short),
    )
    yield (
        "even 128 tokens are better sent in two chunks or more.",
        all(each["fastest, covering"] < each["whole, last row"] for each in short),
    )
    yield "Here no other column is sooner.", all(each["fastest, covering"] <= min(each.values()) for each in live.values())


SENTENCES = (
    short_sentences,
    assumed_sentences,
    figure1_sentences,
    rate_sentences,
    part_sentences,
    chunk_sentences,
    live_sentences,
)


@pytest.mark.parametrize("part", SENTENCES)
def test_the_page_says_what_was_simulated(part: Callable[[], Iterator[str]]) -> None:
    assert not [sentence for sentence in part() if sentence not in page_words(PAGE)]


def test_what_the_page_compares_is_so() -> None:
    found = [*claims()]
    assert not [sentence for sentence, _ in found if sentence not in page_words(PAGE)]
    assert not [sentence for sentence, is_so in found if not is_so]
