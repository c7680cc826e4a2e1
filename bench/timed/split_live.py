"""How long is the time between tokens of a split model over an emulated link, with and without drafts?

The whole client over a real socket: SmolLM2-135M in three parts, its middle at a ``streamco serve --middle`` in another process, between
them a link of 7.5 MB/s up and 12.5 MB/s down. ``7B``: the server takes the times of Vicuna-7B's middle on an A6000 (18 ms a batch and
0.13 ms a row); where its own layers take longer, they count; ``own``: those of this machine. ``threshold ... last``: HAT's equations 5
and 6. Prompts go up in one piece. All contenders answer each prompt in turns and must write the same text. A model this small is faster
in one piece: this is about how trips add up. ``--model`` takes another one.

The draft layer has not learned from these prompts, and nothing of the kind marked as absent. A time between tokens is what a user waits on
average: the seconds of all answers after their first tokens by the number of those tokens. Least and most are those of single answers, and
``median answer`` is the one in their middle. ``tokens a trip`` leaves out the trip of the prompt and the token that it brings.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple
from urllib.parse import urlsplit

from bench.report import Row, add_arguments, emit
from bench.timed.draft_layer import ABSENT, HUMANEVAL, TRAINED, prompts_of
from streamco import Client, SplitEndpoint
from streamco.client.modes.split.mode import Split
from streamco.engines import EngineOptions
from streamco.engines.llamacpp.bundled_model import packaged_model
from streamco.engines.llamacpp.model_parts import PartFiles, split_model
from streamco.engines.split.drafts import DraftOptions
from streamco.testing.link_proxy import LinkProxy
from streamco.testing.server_process import running_server

UP_MBPS, DOWN_MBPS = 60.0, 100.0
STEPS = {"7B": ("--emulate-step", "0.018,0.00013"), "own": ()}
KINDS = {**TRAINED, HUMANEVAL: ABSENT[HUMANEVAL]}
OWN_PROMPTS = 3  # of each kind, with the server's own times
BASE, DEFAULT = "U-shape", "confident"
DRAFTS: dict[str, DraftOptions | None] = {
    BASE: None,
    DEFAULT: DraftOptions(parallel=0),
    "confident, no lookup": DraftOptions(lookup=False, parallel=0),
    "layer's drafts of 4": DraftOptions(window=4, parallel=0, lookup=False),
    "threshold, parallel 3, last": DraftOptions(window="threshold", parallel=3, branches="last", lookup=False),
}


class Case(NamedTuple):
    """A server and a round trip in seconds."""

    step: str
    rtt: float
    contenders: tuple[str, ...]

    @property
    def title(self) -> str:
        """Its name in the table."""
        return f"{self.step}, RTT {self.rtt * 1e3:.0f} ms"


CASES = (
    Case("7B", 0.010, (BASE, DEFAULT)),
    Case("7B", 0.030, tuple(DRAFTS)),
    Case("7B", 0.080, (BASE, DEFAULT)),
    *(Case("own", rtt, (BASE, DEFAULT)) for rtt in (0.010, 0.030, 0.080)),
)


class Answer(NamedTuple):
    """What one answer took: tokens, seconds and trips after its first token, and the seconds before it."""

    text: str
    tokens: int
    seconds: float
    trips: int
    first: float


async def ask(endpoint: SplitEndpoint, client: Client, prompt: str, most: int) -> Answer:
    """Answer a prompt greedily."""
    text, before = "", 0
    times = [time.perf_counter()]
    stream = await client.chat.completions.create(
        messages=[{"role": "user", "content": prompt}], max_tokens=most, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    tokens = 0
    async for chunk in stream:
        tokens = chunk.usage.completion_tokens if chunk.usage is not None else tokens
        if chunk.choices and (piece := chunk.choices[0].delta.content):
            before = before if text else endpoint.traffic.trips  # those of the prompt
            text += piece
            times.append(time.perf_counter())
    if tokens < 2:
        raise SystemExit(f"expected an answer of several tokens, got {text!r} for {prompt[:60]!r}")
    return Answer(text, tokens - 1, times[-1] - times[1], endpoint.traffic.trips - before, times[1] - times[0])


def prompts_by_kind(count: int) -> dict[str, list[str]]:
    """Prompts of three kinds that the draft layer hasn't learned from."""
    return {kind: prompts_of(name, is_absent=kind not in TRAINED, count=count) for kind, name in KINDS.items()}


async def measure(files: PartFiles, case: Case, prompts: Mapping[str, list[str]], most: int, *, exact: bool) -> list[Row]:
    """Time between tokens and tokens a trip over one link."""
    async with AsyncExitStack() as stack:
        options = (
            "--model",
            str(files.middle),
            "--middle",
            "--port",
            "0",
            "--threads",
            "2",
            *STEPS[case.step],
            *(["--exact"] if exact else []),
        )
        url = await stack.enter_async_context(running_server(*options))
        link = await stack.enter_async_context(LinkProxy(urlsplit(url).port or 0, rtt=case.rtt, mbps=UP_MBPS, down_mbps=DOWN_MBPS))
        clients = {}
        for name in case.contenders:
            endpoint = SplitEndpoint(
                files.stem,
                f"ws://127.0.0.1:{link.port}",
                options=EngineOptions(threads=1, exact=exact),
                states="f32",
                drafts=DRAFTS[name],
                chunking="whole",
            )
            clients[name] = endpoint, await stack.enter_async_context(Client(mode=Split(endpoint)))
            await ask(*clients[name], "Count to ten.", 8)  # connected, and the weights are in memory
        answers: dict[str, dict[str, list[Answer]]] = {kind: {name: [] for name in clients} for kind in prompts}
        in_turns = [
            (kind, prompt) for together in zip(*prompts.values(), strict=True) for kind, prompt in zip(prompts, together, strict=True)
        ]
        for turn, (kind, prompt) in enumerate(in_turns):
            order = list(clients)[turn % len(clients) :] + list(clients)[: turn % len(clients)]
            for name in order:
                answers[kind][name].append(await ask(*clients[name], prompt, most))
            texts = {each[-1].text for each in answers[kind].values()}
            if len(texts) > 1:
                raise SystemExit(f"expected the same text of all contenders, got {len(texts)} for {prompt[:60]!r}")
    return rows_of(case.title, answers)


def rows_of(case: str, answers: Mapping[str, Mapping[str, list[Answer]]]) -> list[Row]:
    """Rows over all prompts, and those of each kind except the base's."""
    rows = []
    for kind in ("", *answers):
        chosen = [each for name, each in answers.items() if kind in {"", name}]
        base = [answer for each in chosen for answer in each[BASE]]
        for name in [each for each in chosen[0] if not kind or each != BASE]:
            found = [answer for each in chosen for answer in each[name]]
            contender = f"{name}, {kind}" if kind else name
            rows += [Row("split_live", case, contender, *figure) for figure in figures(found, base)]
    return rows


def figures(found: Sequence[Answer], base: Sequence[Answer]) -> list[tuple[str, str, float, float, float]]:
    """Metric, unit, value, least and most of some answers, from the base's answers to the same prompts."""
    times, trips = [each.seconds * 1e3 / each.tokens for each in found], [each.tokens / each.trips for each in found]
    ratios = [each.seconds / other.seconds for each, other in zip(found, base, strict=True)]
    seconds, tokens = sum(each.seconds for each in found), sum(each.tokens for each in found)
    values = (
        ("time between tokens", "ms", seconds * 1e3 / tokens, times),
        ("time between tokens", "of the U-shape's", seconds / sum(each.seconds for each in base), ratios),
        ("median answer's time between tokens", "of the U-shape's", median(ratios), ratios),
        ("tokens a trip", "tokens", tokens / sum(each.trips for each in found), trips),
    )
    return [(metric, unit, value, min(each), max(each)) for metric, unit, value, each in values]


async def run(model: Path, cases: Sequence[Case], count: int, most: int, *, exact: bool) -> list[Row]:
    """Some links and servers."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        files = split_model(model, folder)
        for case in cases:
            prompts = prompts_by_kind(count if case.step == "7B" else min(count, OWN_PROMPTS))
            rows += await measure(files, case, prompts, most, exact=exact)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--prompts", type=int, default=5, help="of each kind (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=96, help="of each answer (default: %(default)s)")
    parser.add_argument("--model", type=Path, help="a GGUF file that has a draft layer (default: the packaged model)")
    parser.add_argument("--rtt-ms", type=int, nargs="+", choices=[10, 30, 80], default=[10, 30, 80], help="round trips (default: all)")
    parser.add_argument("--exact", action="store_true", help="exact mode, for a model that computes some rows together with other bits")
    args = parser.parse_args()
    count, most = (1, 16) if args.quick else (args.prompts, args.tokens)
    cases = CASES[1:2] if args.quick else [case for case in CASES if round(case.rtt * 1e3) in args.rtt_ms]
    emit(asyncio.run(run(args.model or Path(packaged_model()), cases, count, most, exact=args.exact)), args.json, against=BASE)


if __name__ == "__main__":
    main()
