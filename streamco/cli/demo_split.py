"""``streamco demo --split``: the packaged model in three parts, its ends in this process and its middle in a server (docs/split.md).

On one machine a round trip takes no time, so neither trips nor drafts would make a difference. Therefore the server is reached over an
emulated link and takes as long as a large model, unless ``--rtt-ms 0`` is given. Each prompt is answered without drafts, with drafts, and
by the whole model.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from streamco.cli.runtime import waiting
from streamco.cli.ui.answer import AnswerSettings, ShownAnswer, read_answer
from streamco.cli.ui.slash_commands import pace_text
from streamco.cli.ui.talk import answer_prompt, converse, is_interactive
from streamco.cli.ui.view import View
from streamco.client.client import Client
from streamco.client.modes.split.mode import Split
from streamco.core.report import Report
from streamco.core.report_text import Section, format_seconds
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.split.endpoint import SplitEndpoint
from streamco.engines.base import EngineOptions
from streamco.errors import ConfigError
from streamco.testing.link_proxy import LinkProxy
from streamco.testing.server_process import running_server

__all__ = ["check_split_arguments", "comparison", "emulation_text", "run_split_demo", "verdict_text"]

PROMPTS = ("What is photosynthesis?", "Write a short poem about the sea.")
MAX_TOKENS = 40
RTT_MS = 30.0
UP_MBPS, DOWN_MBPS = 60.0, 100.0  # the link in HAT's experiments: 7.5 MB/s up and 12.5 down
BATCH_S, ROW_S = 0.018, 0.00013  # measured for the middle of Vicuna-7B on one A6000
SEED = 0
ONE_THREAD = EngineOptions(threads=1)


class _Sides(Struct, frozen=True):
    """The three ways to make an answer. ``plain`` doesn't draft; ``whole`` is the undivided model on this machine."""

    plain: Client
    drafting: Client
    whole: Client


def check_split_arguments(args: argparse.Namespace, *, latency: str) -> None:
    """Refuse options that have no effect on a split model. ``latency`` is the default value of ``--latency``.

    Raises:
        ConfigError: such an option is given.
    """
    for name, usual in (
        ("mode", "race"),
        ("budget", None),
        ("policy", "auto"),
        ("no_migration", False),
        ("min_quality", None),
        ("latency", latency),
        ("device", None),
        ("server", None),
    ):
        if (value := getattr(args, name)) != usual:
            raise ConfigError(f"--{name.replace('_', '-')}: can't be combined with --split, where one model makes the answer, got {value}")


async def run_split_demo(args: argparse.Namespace, view: View) -> int:
    """Show what leaves the device and what drafts gain, and return the exit code."""
    rtt_ms = RTT_MS if args.rtt_ms is None else args.rtt_ms
    async with AsyncExitStack() as stack:
        parts, url = await stack.enter_async_context(_server(rtt_ms))
        drafting = await stack.enter_async_context(_split_client(parts, url))
        if args.prompt is not None:
            view.note(emulation_text(rtt_ms))
            return await answer_prompt(drafting, args, view)
        _introduce(args, view, rtt_ms)
        async with waiting("loading the whole model to compare with"):
            whole = await stack.enter_async_context(_whole_client())
            plain = await stack.enter_async_context(_split_client(parts, url, drafts=False))
        code = await _play(_Sides(plain, drafting, whole), args, view)
        if code == 0 and is_interactive(args):
            view.heading("now you: ask anything, /report tells all about an answer")
            return await converse(drafting, args, view)
        return code


def _introduce(args: argparse.Namespace, view: View, rtt_ms: float) -> None:
    view.legend({"split": "SmolLM2-135M in three parts: first two layers and head here, 28 layers at a server on this machine"})
    view.note(emulation_text(rtt_ms))
    view.note("The server has no tokenizer and gets no text: only hidden states go to it and come back.")
    view.note("They hide nothing from a server that looks for the text: see docs/split.md.")
    view.note("A model this small is faster in one piece, as you will see. A split is for models that don't fit the device.")
    if args.pace is not None:
        view.note(f"pace   {pace_text(args.pace)}")


def emulation_text(rtt_ms: float) -> str:
    """Return a sentence or two about what is emulated, which is nothing if ``rtt_ms`` is 0."""
    if not rtt_ms:
        return "Nothing is emulated. A trip to a server on the same machine takes no time, so drafts seldom pay."
    link = f"a round trip of {rtt_ms:g} ms, {UP_MBPS / 8:g} MB/s up and {DOWN_MBPS / 8:g} MB/s down"
    return f"Emulated: {link}; and a 7B's times on a GPU, {BATCH_S * 1e3:g} ms a batch and {ROW_S * 1e3:g} ms a row."


@asynccontextmanager
async def _server(rtt_ms: float) -> AsyncIterator[tuple[Path, str]]:
    """Split the model, start a server with its middle, and yield the path prefix of the device's files, and the server's URL."""
    from streamco.engines.llamacpp.bundled_model import packaged_model
    from streamco.engines.llamacpp.model_parts import split_model

    times = ("--emulate-step", f"{BATCH_S},{ROW_S}") if rtt_ms else ()
    with tempfile.TemporaryDirectory(prefix="streamco-parts-") as folder:
        async with AsyncExitStack() as stack:
            async with waiting("cutting the model"):
                files = await asyncio.to_thread(split_model, packaged_model(), folder)
            async with waiting("starting the server"):
                options = ("--model", str(files.middle), "--middle", "--port", "0", "--threads", "1", *times)
                url = await stack.enter_async_context(running_server(*options))
            if rtt_ms:
                link = LinkProxy(urlsplit(url).port or 0, rtt=rtt_ms / 1e3, mbps=UP_MBPS, down_mbps=DOWN_MBPS)
                await stack.enter_async_context(link)
                url = f"http://127.0.0.1:{link.port}"
            yield files.stem, url


def _split_client(parts: Path, url: str, *, drafts: bool = True) -> Client:
    """Return a client that sends a prompt in one piece and in 32 bits, so that the rows are computed as in the whole model."""
    endpoint = SplitEndpoint(parts, url, options=ONE_THREAD, states="f32", drafts="auto" if drafts else None, chunking="whole")
    return Client(mode=Split(endpoint))


def _whole_client() -> Client:
    from streamco.engines.llamacpp.bundled_model import packaged_model

    return Client(DeviceEndpoint(packaged_model(), name="whole", options=ONE_THREAD))


async def _play(sides: _Sides, args: argparse.Namespace, view: View) -> int:
    """Answer the built-in prompts in three ways, compare them, and return the exit code."""
    seed = SEED if args.seed is None else args.seed  # the same for all, so that sampled texts are the same, too
    settings = AnswerSettings(pace=args.pace, max_tokens=args.max_tokens or MAX_TOKENS, temperature=args.temperature or 0.0, seed=seed)
    system = [{"role": "system", "content": args.system}] if args.system else []
    for number, prompt in enumerate(PROMPTS, 1):
        messages = [*system, {"role": "user", "content": prompt}]
        view.heading(f"{number}. {prompt}")
        answers: dict[str, ShownAnswer] = {}
        for name, client in (("without drafts", sides.plain), ("with drafts", sides.drafting)):
            view.note(f"{name}:")
            answers[name] = answer = await read_answer(client, messages, settings, view)
            if answer.ending:
                return answer.exit_code
        async with waiting("the whole model on this machine, for comparison"):
            answers["whole model here"] = await _answer_of(sides.whole, messages, settings)
        view.tables([comparison(answers)])
        view.note(verdict_text(answers, is_paced=args.pace is not None))
    return 0


async def _answer_of(client: Client, messages: Sequence[Mapping[str, str]], settings: AnswerSettings) -> ShownAnswer:
    """Return an answer at full speed, without showing it."""
    stream = client.stream(messages, max_tokens=settings.max_tokens, temperature=settings.temperature, seed=settings.seed)
    async with stream:
        text = "".join([token.text async for token in stream])
    return ShownAnswer(text=text, report=stream.report)


def comparison(answers: Mapping[str, ShownAnswer]) -> Section:
    """Return a table with a column for each answer. Texts are compared with the first answer's."""
    reports = [answer.report for answer in answers.values() if answer.report is not None]
    first = next(iter(answers.values())).text
    rows: list[tuple[str, ...]] = [
        ("time between tokens", *(format_seconds(_between_tokens(report)) for report in reports)),
        ("first token after", *(format_seconds(report.ttft) for report in reports)),
        ("tokens, trips", *(_trips(report) for report in reports)),
        ("tokens a trip", *(_tokens_a_trip(report) for report in reports)),
        ("drafted, of these right", *(_drafts(report) for report in reports)),
        ("bytes up, down", *(_bytes(report) for report in reports)),
        ("text", *(_sameness(answer.text, first, number) for number, answer in enumerate(answers.values()))),
    ]
    return Section("the three answers", ("", *answers), rows)


def _between_tokens(report: Report) -> float | None:
    """Return the average seconds between tokens. Drafted tokens come together, so the median would be 0."""
    return 1 / report.tokens_per_second if report.tokens_per_second else None


def _trips(report: Report) -> str:
    return f"{report.tokens}, {report.split.trips if report.split else 'none'}"


def _tokens_a_trip(report: Report) -> str:
    per_trip = report.split.tokens_per_trip if report.split else None
    return "-" if per_trip is None else f"{per_trip:.2f}"


def _drafts(report: Report) -> str:
    return f"{report.split.drafted}, {report.split.accepted}" if report.split and report.split.drafted else "-"


def _bytes(report: Report) -> str:
    return f"{report.split.bytes_up}, {report.split.bytes_down}" if report.split else "0, 0"


def _sameness(text: str, first: str, number: int) -> str:
    return "-" if number == 0 else "the same" if text == first else "another"


def verdict_text(answers: Mapping[str, ShownAnswer], *, is_paced: bool = False) -> str:
    """Return sentences that compare the times of answers without drafts, with drafts and by the whole model, or "" without times."""
    if is_paced:
        return "Answers shown at a pace have the pace's time between tokens. Without --pace their own times are compared."
    reports = [answer.report for answer in answers.values()]
    times = [None if report is None else _between_tokens(report) for report in reports]
    if len(times) != 3 or not all(times):
        return ""
    plain, drafting, whole = (time or 0.0 for time in times)
    drafts = f"With drafts a token takes {drafting / plain:.2f} of the time without them."
    if drafting > plain:
        drafts += " They took longer to make and check than the trips that they saved, as on a busy machine."
    split = f"The split takes {drafting / whole:.1f} times as long a token as the whole model on this machine."
    return f"{drafts} {split}" if drafting > whole else drafts
