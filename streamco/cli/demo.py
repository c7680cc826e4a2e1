"""``streamco demo``: both sides on one machine, with no key and no download.

The server is ``streamco serve`` in a separate process, with the packaged model and the measured latency of a real service. The device
runs the same model, unless you choose another. Each has one thread, because unlike two machines they share the cores, often only two.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from streamco.cli import demo_page
from streamco.cli.demo_page import KillableServer, add_page_arguments, check_page_arguments, serve_page
from streamco.cli.demo_story import BUDGETED, PROMPT, Stage, play_story
from streamco.cli.options import (
    add_answer_arguments,
    add_look_arguments,
    add_prompt_arguments,
    budget_of,
    model_file,
    number,
    option,
    quality_of,
    take_prompt,
)
from streamco.cli.runtime import run_async, waiting
from streamco.cli.ui.answer import read_answer
from streamco.cli.ui.control_characters import print_plain
from streamco.cli.ui.slash_commands import USUAL_PACE
from streamco.cli.ui.talk import answer_prompt, converse, is_interactive, make_view, migration_of, settings_of
from streamco.cli.ui.view import View
from streamco.client.client import Client
from streamco.client.modes.base import Mode
from streamco.client.modes.race.mode import Race
from streamco.client.modes.speculation.mode import Speculate
from streamco.client.modes.speculation.verifier_binding import drafting_engine_options
from streamco.core.report import Report
from streamco.core.report_parts import SpeculationFigures
from streamco.core.report_text import format_usd
from streamco.endpoints.base import TokenPrices
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.engines.base import EngineOptions
from streamco.errors import ConfigError
from streamco.testing.server_process import running_server, started_server

__all__ = ["add_arguments", "run"]

DESCRIPTION = """\
A server and a device on this machine: the server has the measured latency of a real one. In three scenes the same prompts go to the server
alone and to both: the first word comes sooner, a killed server doesn't end the answer, and the bill keeps to a budget. On a terminal you
can go on asking. With --page you ask in a browser.
"""
LATENCY = "openai-gpt-3.5-turbo-0125"
PRICES = TokenPrices(prompt=0.5e-6, completion=1.5e-6)  # OpenAI's list price of that model, US dollars per token
STEP_TIMES = "llama2-70b-a100x2"  # step times that are imposed on the server if it verifies
PROMPT_LENGTHS = (35, 35, 35, 35, 35, 40, 40, 95)  # tokens, equally likely; what the plan expects before the first prompt
DRAFTED = (BUDGETED[0], PROMPT)  # prompts of --mode speculate


class Models(Struct, frozen=True):
    """The two models of the demo."""

    device: Path
    server: Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``streamco demo``."""
    parser.description = DESCRIPTION
    parser.add_argument(
        "--latency",
        metavar="PROFILE",
        help=f"times that the server keeps to ({LATENCY}, with --page {demo_page.LATENCY}); list names all profiles",
    )
    parser.add_argument("--device", metavar="PATH", help="GGUF file of the device's model (the server's)")
    parser.add_argument("--server", metavar="PATH", help="GGUF file of the server's model (the packaged one)")
    add_page_arguments(parser)
    parser.add_argument("--split", action="store_true", help="a model in three parts, the middle one at the server (docs/split.md)")
    parser.add_argument(
        "--rtt-ms",
        type=option(number),
        metavar="MS",
        help="with --split: milliseconds of the emulated round trip (30); 0: no link and no large model's times are emulated",
    )
    add_answer_arguments(parser)
    add_prompt_arguments(parser)
    add_look_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the demo. The exit code is 0, or 1 if an endpoint failed, or 130 after Ctrl-C.

    Raises:
        StreamcoError: the demo can't start.
    """
    from streamco.emulation.profiles import load_latency, packaged_names

    take_prompt(args)
    if args.mode == "auto":
        raise ConfigError("--mode: expected race or speculate for the demo, got auto")
    if args.latency == "list":
        print_plain("\n".join(packaged_names("latency")))
        return 0
    check_page_arguments(args)
    args.latency = args.latency or (demo_page.LATENCY if args.page else LATENCY)
    if args.json and args.prompt is None:
        raise ConfigError("--json: only valid with --prompt TEXT")
    if args.split:
        from streamco.cli.demo_split import check_split_arguments

        check_split_arguments(args, latency=LATENCY)
        args.pace = None if args.pace is USUAL_PACE else args.pace
    elif args.rtt_ms is not None:
        raise ConfigError("--rtt-ms: only valid with --split")
    _models(args)  # a wrong path is an error before anything starts
    load_latency(args.latency)  # a wrong name is an error before anything starts
    return run_async(lambda: _demo(args))


async def _demo(args: argparse.Namespace) -> int:
    if args.page:
        return await _serve_page(args)
    if args.split:
        from streamco.cli.demo_split import run_split_demo

        return await run_split_demo(args, make_view(args, {"split": "device"}, notes=sys.stdout if args.prompt is None else None))
    view = make_view(args, {"device": "device", "server": "server"}, notes=sys.stdout if args.prompt is None else None)
    if args.prompt is not None:
        async with _client(args) as client:
            return await answer_prompt(client, args, view)
    _introduce(args, view)
    if args.mode == "speculate":
        async with _client(args) as client:
            code = await _play_drafts(client, args, view)
            return await _go_on(client, args, view) if code == 0 else code
    code = await play_story(_stage(args), view)
    if code or not is_interactive(args):
        return code
    async with _client(args) as client:
        return await _go_on(client, args, view)


async def _go_on(client: Client, args: argparse.Namespace, view: View) -> int:
    if not is_interactive(args):
        return 0
    view.heading("now you: ask anything, /report tells all about an answer")
    return await converse(client, args, view)


async def _serve_page(args: argparse.Namespace) -> int:
    """Serve both sides and the page until SIGINT or SIGTERM, and return the exit code."""
    models = _models(args)
    async with AsyncExitStack() as stack:
        async with waiting("starting the server"):
            server = KillableServer(lambda port: started_server(*_server_options(args, models, port)))
            await stack.enter_async_context(server)
        return await serve_page(args, await stack.enter_async_context(_client_of(args, server.url)), server)


def _introduce(args: argparse.Namespace, view: View) -> None:
    models = _models(args)
    name = "SmolLM2-135M" if args.server is None else models.server.stem
    small = "the same model" if models.device == models.server else models.device.stem
    view.legend(
        {
            "server": f"{name} behind HTTP, in a process of its own, timed like {_timed_like(args)}",
            "device": f"{small} in this process, one thread",
        }
    )
    if args.mode == "race":
        view.note("streamco asks one of them or both, and shows the text of the one that starts first")
    else:
        view.note(f"the device drafts, the server verifies {budget_of(args):.0%} of its drafts")


def _models(args: argparse.Namespace) -> Models:
    """Return the models that the options name.

    Raises:
        ConfigError: a file doesn't exist.
        EngineError: the packaged model is needed and isn't installed.
    """
    from streamco.engines.llamacpp.bundled_model import packaged_model

    server = packaged_model() if args.server is None else model_file(args.server, "--server")
    return Models(server if args.device is None else model_file(args.device, "--device"), server)


def _timed_like(args: argparse.Namespace) -> str:
    return STEP_TIMES if args.mode == "speculate" else str(args.latency)


def _stage(args: argparse.Namespace) -> Stage:
    """Return what the scenes need."""
    models = _models(args)

    @asynccontextmanager
    async def connect(url: str, mode: Race, budget: float) -> AsyncIterator[Client]:
        async with Client(
            _device(args, models),
            _server_at(url, models),
            budget=budget,
            mode=mode,
            profile=_prior(args.latency),
            on_degraded="ignore",  # what happens is seen, and a line of the log would tear the columns apart
        ) as client:
            yield client

    @asynccontextmanager
    async def draft() -> AsyncIterator[tuple[str, Client]]:
        own = argparse.Namespace(**{**vars(args), "mode": "speculate", "budget": None})
        async with running_server(*_server_options(own, models)) as url:
            client = Client(_device(own, models), _server_at(url, models), budget=1.0, mode=_mode(own), seed=args.seed)
            async with client:
                yield url, client

    return Stage(
        start_server=lambda: started_server(*_server_options(args, models)),
        connect=connect,
        draft=draft,
        is_pair=models.device != models.server,
        model=models.server.stem,
        prices=PRICES,
        settings=replace(settings_of(args), temperature=args.temperature or 0.0),
    )


def _server_options(args: argparse.Namespace, models: Models, port: int = 0) -> tuple[str, ...]:
    speculates = args.mode == "speculate"
    timing = ("--step-times", STEP_TIMES) if speculates else ("--latency", args.latency, "--latency-seed", str(args.seed or 0))
    return ("--model", str(models.server), "--port", str(port), "--threads", "1", *timing)


def _server_at(url: str, models: Models) -> OpenAIEndpoint:
    return OpenAIEndpoint(models.server.stem, base_url=url, name="server", prices=PRICES)


def _device(args: argparse.Namespace, models: Models) -> DeviceEndpoint:
    engine = EngineOptions(threads=1)
    options = drafting_engine_options(engine, budget_of(args)) if args.mode == "speculate" else engine
    return DeviceEndpoint(models.device, options=options, name="device")


@asynccontextmanager
async def _client(args: argparse.Namespace) -> AsyncIterator[Client]:
    """Yield a client for both endpoints. Everything that it needs is started first, and stopped at the end."""
    async with AsyncExitStack() as stack:
        async with waiting("starting the server"):
            url = await stack.enter_async_context(running_server(*_server_options(args, _models(args))))
        yield await stack.enter_async_context(_client_of(args, url))


@asynccontextmanager
async def _client_of(args: argparse.Namespace, url: str) -> AsyncIterator[Client]:
    """Yield a client for the device and the server at this URL."""
    models = _models(args)
    client = Client(
        _device(args, models),
        _server_at(url, models),
        budget=budget_of(args),
        mode=_mode(args),
        profile=_prior(args.latency),
        seed=args.seed,
    )
    async with AsyncExitStack() as stack:
        async with waiting("loading the device's model"):
            await stack.enter_async_context(client)
        yield client


def _mode(args: argparse.Namespace) -> Mode:
    # the loser of a race runs to its first token, so that both times can be shown; drafting is shown even on a busy machine
    race = Race(policy=args.policy, migration=migration_of(args), explore=1.0, quality=quality_of(args))
    return Speculate(is_adaptive=False, otherwise=race) if args.mode == "speculate" else race


def _prior(latency: str) -> bytes:
    """Return the profile that a client would have learned: the server's times to first token, and prompt lengths."""
    from streamco.emulation.profiles import load_latency
    from streamco.profiles import LengthDistribution, Profile, TTFTDistribution

    times = TTFTDistribution.from_samples(load_latency(latency).ttft_s)
    return Profile(name=latency, server_ttft=times, lengths=LengthDistribution.from_samples(PROMPT_LENGTHS)).to_json()


async def _play_drafts(client: Client, args: argparse.Namespace, view: View) -> int:
    """Answer prompts with drafts from the device, show what became of the drafts, and return the exit code."""
    settings = replace(settings_of(args), max_tokens=args.max_tokens or 60, temperature=args.temperature or 0.0)
    system = [{"role": "system", "content": args.system}] if args.system else []
    server = client.with_options(mode=Race(policy="server-only"))
    for prompt in DRAFTED:
        view.heading(f"> {prompt}")
        messages = [*system, {"role": "user", "content": prompt}]
        answer = await read_answer(client, messages, settings, view)
        if answer.ending:
            return answer.exit_code
        if answer.report is not None and answer.report.speculation is not None:
            async with waiting("the same from the server alone"):
                alone = await server.chat.completions.create(
                    messages=messages, max_tokens=settings.max_tokens, temperature=settings.temperature
                )
            lines = _explain_drafts(answer.report, answer.report.speculation)
            if alone.report is not None:
                lines += [f"the server alone: {_speed(alone.report)}, {format_usd(alone.report.cost_usd)}"]
            view.note("\n".join(f"  {line}" for line in lines))
    return 0


def _explain_drafts(report: Report, figures: SpeculationFigures) -> list[str]:
    made = f"tokens: {figures.accepted} accepted, {figures.corrected} corrected, {figures.bonus} after drafts accepted whole"
    others = ((figures.device, "not verified"), (figures.remote, "by the server alone"))
    rounds = f"rounds: {figures.rounds}, {figures.bytes_up} bytes up and {figures.bytes_down} down"
    exact = "yes" if figures.is_exact else "no"
    lines = [
        made + "".join(f", {count} {what}" for count, what in others if count),
        f"{rounds}; in {_percent(figures.hit_rate)} of them the next draft was there with the verdict",
        f"the server's own answer: {exact}; it computed {figures.target_tokens} tokens for {report.tokens} of the answer",
    ]
    lines.append(f"with drafts: {_speed(report)}, {format_usd(report.cost_usd)}")
    return lines


def _speed(report: Report) -> str:
    rate = "too short to measure" if report.tokens_per_second is None else f"{report.tokens_per_second:.1f} tokens/s"
    return f"{rate}, {report.quality.stalls} stalls"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
