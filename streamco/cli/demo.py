"""``streamco demo``: both sides on one machine, with no key and no download.

The server is ``streamco serve`` in a process of its own, with the packaged model and the measured latency of a real service. The device
runs a smaller quantisation of the same model. Each has one thread, because they share two cores, as two machines would not.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from streamco.cli.options import (
    add_answer_arguments,
    add_look_arguments,
    add_prompt_arguments,
    budget_of,
    model_file,
    number,
    option,
    quality_of,
)
from streamco.cli.runtime import run_async, waiting
from streamco.cli.serving import serve_until_stopped
from streamco.cli.ui.answer import AnswerSettings, read_answer
from streamco.cli.ui.control_characters import print_plain
from streamco.cli.ui.slash_commands import pace_text
from streamco.cli.ui.talk import answer_prompt, converse, is_interactive, make_view, migration_of
from streamco.cli.ui.view import View
from streamco.client.client import Client
from streamco.client.modes.base import Mode
from streamco.client.modes.race.migration import MigrationOptions
from streamco.client.modes.race.mode import Race
from streamco.client.modes.speculation.mode import Speculate
from streamco.client.modes.speculation.verifier_binding import drafting_engine_options
from streamco.core.report import Report
from streamco.core.report_parts import EndpointReport, HandOver, SpeculationFigures
from streamco.core.report_text import format_saving, format_seconds, format_usd
from streamco.endpoints.base import TokenPrices
from streamco.errors import ConfigError
from streamco.testing.server_process import running_server

__all__ = ["add_arguments", "run"]

DESCRIPTION = """\
A server and a device on this machine: a server with the measured latency of a real one, and a smaller copy of its model on the device.
Three prompts show which side answers when, and when an answer moves. On a terminal you can go on asking. With --page you ask in a browser.
"""
LATENCY = "openai-gpt-3.5-turbo-0125"
PRICES = TokenPrices(prompt=0.5e-6, completion=1.5e-6)  # OpenAI's list price of that model, US dollars per token
STEP_TIMES = "llama2-70b-a100x2"  # step times that the server keeps to if it verifies
DEVICE_KIND = "Q4_0"  # smaller ones repeat themselves with this model
LATE_POLICY, LATE_BUDGET = "proportional-wait", 0.22  # the device starts late enough to lose, but it starts
PROMPT_LENGTHS = (30, 35, 40, 45, 50, 60, 80, 120, 200, 400)  # tokens, equally likely: what the plan expects before the first prompt


class Models(Struct, frozen=True):
    """The two models of the demo. ``device`` is None if it is derived from the server's."""

    device: Path | None
    server: Path


class UsualPace(float):
    """A pace that no option gave; a split model is shown at its own speed then."""


PACE = UsualPace(12.0)  # tokens/s: a brisk reader; fast enough not to bore, slow enough to see that nothing stutters


class Scene(Struct, frozen=True):
    """A prompt and what it shows. ``server_first``: the device lets the server start."""

    title: str
    prompt: str
    server_first: bool = False
    max_tokens: int = 60


SCENES = (
    Scene("a short prompt", "What is the capital of France?"),
    Scene(
        "a long prompt",
        "Sum up this message in one sentence: Dear team, the move to the new building begins on Monday morning. Please pack your desk on"
        " Friday afternoon, put a label with your name and your new room on every box, and leave your computer where it is: the technicians"
        " will carry it over during the weekend. The parking lot behind the old building stays open until the end of the month. Keys are"
        " handed out at the front desk from eight o'clock on. If something is missing on Monday, tell Maria in room 204.",
    ),
    Scene(
        "a long answer",
        "Write a long story about a young fox, an old lighthouse and the sea in winter, for reading aloud.",
        server_first=True,
        max_tokens=120,
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``streamco demo``."""
    parser.description = DESCRIPTION
    parser.add_argument(
        "--latency", default=LATENCY, metavar="PROFILE", help=f"times that the server keeps to ({LATENCY}); list names all profiles"
    )
    parser.add_argument("--device", metavar="PATH", help="GGUF file of the device's model; without it a smaller copy of the server's")
    parser.add_argument("--server", metavar="PATH", help="GGUF file of the server's model (the packaged one)")
    parser.add_argument("--page", action="store_true", help="a chat for browsers on a free port of this machine, until Ctrl-C")
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
    parser.set_defaults(policy="device-constrained", pace=PACE)


def run(args: argparse.Namespace) -> int:
    """Run the demo; the exit code is 0, or 1 if an endpoint failed, 130 after Ctrl-C.

    Raises:
        StreamcoError: the demo can't start.
    """
    from streamco.emulation.profiles import load_latency, packaged_names

    if args.mode == "auto":
        raise ConfigError("--mode: expected race or speculate for the demo, got auto")
    if args.latency == "list":
        print_plain("\n".join(packaged_names("latency")))
        return 0
    if args.page:
        _check_page_arguments(args)
    if args.json and args.prompt is None:
        raise ConfigError("--json: expected --prompt TEXT beside it, got none")
    if args.split:
        from streamco.cli.demo_split import check_split_arguments

        check_split_arguments(args, latency=LATENCY)
        args.pace = None if isinstance(args.pace, UsualPace) else args.pace
    elif args.rtt_ms is not None:
        raise ConfigError(f"--rtt-ms: expected --split beside it, got {args.rtt_ms:g} alone")
    _models(args)  # a wrong path is an error before anything starts
    load_latency(args.latency)  # a wrong name is an error before anything starts
    return run_async(lambda: _demo(args))


def _check_page_arguments(args: argparse.Namespace) -> None:
    """Check that no option is given that has no effect on a page, where each prompt is typed into a browser.

    Raises:
        ConfigError: one is given.
    """
    for name in ("split", "prompt", "json", "system", "max_tokens", "temperature"):
        value = getattr(args, name)
        if value is not None and value is not False:
            raise ConfigError(f"--{name.replace('_', '-')}: expected none with --page, got {value}")


async def _demo(args: argparse.Namespace) -> int:
    if args.page:
        return await _serve_page(args)
    if args.split:
        from streamco.cli.demo_split import run_split_demo

        return await run_split_demo(args, make_view(args, {"split": "device"}, notes=sys.stdout if args.prompt is None else None))
    view = make_view(args, {"device": "device", "server": "server"}, notes=sys.stdout if args.prompt is None else None)
    async with _client(args) as client:
        if args.prompt is not None:
            return await answer_prompt(client, args, view)
        _introduce(args, view)
        code = await _play(client, args, view)
        if code == 0 and is_interactive(args):
            view.heading("now you: ask anything, /report tells all about an answer")
            return await converse(client, args, view)
        return code


async def _serve_page(args: argparse.Namespace) -> int:
    """Serve both sides and the page on a free loopback port until SIGINT or SIGTERM, and return the exit code."""
    from streamco.proxy.app import serving
    from streamco.proxy.config import ProxyOptions

    async with _client(args) as client:
        print_plain("open the address below in a browser; Ctrl-C ends the demo", sys.stderr)
        await serve_until_stopped(serving(client.with_options(pace=args.pace), ProxyOptions(page=True)), None)
    return 0


def _introduce(args: argparse.Namespace, view: View) -> None:
    models = _models(args)
    name = "SmolLM2-135M" if args.server is None else models.server.stem
    small = f"{name} as {DEVICE_KIND}" if models.device is None else models.device.stem
    large = "the same model as Q4_1" if args.server is args.device is None else models.server.stem
    view.legend(
        {
            "device": f"{small} on this machine, one thread",
            "server": f"{large} behind HTTP, one thread, timed like {_timed_like(args)}",
        }
    )
    if args.mode == "speculate":
        view.note(f"the device drafts, the server verifies {budget_of(args):.0%} of its drafts")
    else:
        view.note(f"policy {args.policy}: the {_spared(args.policy)} may read {budget_of(args):.0%} of all prompt tokens")
    view.note(f"pace   {pace_text(args.pace)}, for text of both sides")


def _models(args: argparse.Namespace) -> Models:
    """Return the models that the options name.

    Raises:
        ConfigError: one of the files isn't there.
        EngineError: the packaged model is needed and isn't installed.
    """
    from streamco.engines.llamacpp.bundled_model import packaged_model

    device = None if args.device is None else model_file(args.device, "--device")
    return Models(device, packaged_model() if args.server is None else model_file(args.server, "--server"))


def _migration(args: argparse.Namespace) -> MigrationOptions:
    """Return the migration options; unless the user says otherwise, the demo shows a move however good the device's model is."""
    options = migration_of(args)
    return options if options.min_quality is not None else replace(options, min_quality=0.0)


def _timed_like(args: argparse.Namespace) -> str:
    return STEP_TIMES if args.mode == "speculate" else str(args.latency)


def _spared(policy: str) -> str:
    return "server" if policy == "server-constrained" else "device"


@asynccontextmanager
async def _client(args: argparse.Namespace) -> AsyncIterator[Client]:
    """Yield a client over both endpoints; everything it needs is started before and stopped at the end."""
    from streamco.endpoints.device import DeviceEndpoint
    from streamco.endpoints.openai import OpenAIEndpoint
    from streamco.engines.base import EngineOptions
    from streamco.engines.llamacpp.gguf import derived

    speculates = args.mode == "speculate"
    timing = ("--step-times", STEP_TIMES) if speculates else ("--latency", args.latency, "--latency-seed", str(args.seed or 0))
    models = _models(args)
    async with AsyncExitStack() as stack:
        if (small := models.device) is None:
            async with waiting(f"deriving the device's model ({DEVICE_KIND})"):
                small = await asyncio.to_thread(derived, models.server, DEVICE_KIND)
        async with waiting("starting the server"):
            url = await stack.enter_async_context(running_server("--model", str(models.server), "--port", "0", "--threads", "1", *timing))
        engine = EngineOptions(threads=1)
        device = DeviceEndpoint(small, options=drafting_engine_options(engine, budget_of(args)) if speculates else engine)
        server = OpenAIEndpoint(models.server.stem, base_url=url, name="server", prices=PRICES)
        client = Client(
            device,
            server,
            budget=budget_of(args),
            mode=_mode(args),
            profile=_prior(args.latency),
            seed=args.seed,
        )
        async with waiting("loading the device's model"):
            await stack.enter_async_context(client)
        yield client


def _mode(args: argparse.Namespace) -> Mode:
    # the loser of a race runs to its first token, so that both times can be shown; and drafting is shown even on a busy machine
    race = Race(policy=args.policy, migration=_migration(args), explore=1.0, quality=quality_of(args))
    return Speculate(is_adaptive=False, otherwise=race) if args.mode == "speculate" else race


def _prior(latency: str) -> bytes:
    """Return the profile that a client would have learned: the server's times to first token, and lengths of prompts."""
    from streamco.emulation.profiles import load_latency
    from streamco.profiles import LengthDistribution, Profile, TTFTDistribution

    times = TTFTDistribution.from_samples(load_latency(latency).ttft_s)
    return Profile(name=latency, server_ttft=times, lengths=LengthDistribution.from_samples(PROMPT_LENGTHS)).to_json()


async def _play(client: Client, args: argparse.Namespace, view: View) -> int:
    """Answer the built-in prompts, show what happened, and return the exit code."""
    for place, scene in enumerate(SCENES, 1):
        view.heading(f"{place}. {scene.title}")
        view.note(f"> {scene.prompt}")
        asked = client
        if scene.server_first and args.mode == "race":
            view.note(f"(policy {LATE_POLICY}, the device may read {LATE_BUDGET:.0%} of all prompt tokens: the server has a head start)")
            asked = client.with_options(mode=replace(client.race, policy=LATE_POLICY), budget=LATE_BUDGET)
        settings = AnswerSettings(
            pace=args.pace, max_tokens=args.max_tokens or scene.max_tokens, temperature=args.temperature or 0.0, seed=args.seed
        )
        system = [{"role": "system", "content": args.system}] if args.system else []
        answer = await read_answer(asked, [*system, {"role": "user", "content": scene.prompt}], settings, view)
        if answer.ending:
            return answer.exit_code
        if answer.report is not None:
            view.note("\n".join(_explain(answer.report)))
            if scene.server_first and args.mode == "race" and not answer.report.hand_overs:
                view.note(f"  no hand-over this time: {_why_unmoved(answer.report, args)}")
    return 0


def _why_unmoved(report: Report, args: argparse.Namespace) -> str:
    """Return the likeliest reason why the answer stayed where it began."""
    if args.no_migration:
        return "--no-migration forbids it"
    if report.winner == "device":
        return "the device had the first word, and it is the cheaper side"
    if all(part.opened is None for part in report.endpoints if part.kind == "device"):
        return "the server answered before the device had started, and the budget lets only a device that has started go on"
    return "the answer was too short, or the device too slow on this machine, to save anything"


def _explain(report: Report) -> list[str]:
    """Return the course of an answer as plain lines."""
    if report.speculation is not None:
        return [f"  {line}" for line in _explain_drafts(report, report.speculation)]
    waits = {"device": report.dispatch.device_wait, "server": report.dispatch.server_wait}
    lines = ["plan: " + ", ".join(f"{name} {_when(wait)}" for name, wait in waits.items())]
    lines += [_endpoint_line(part) for part in sorted(report.endpoints, key=lambda part: part.outcome != "won")]
    lines += [_change_line(change) for change in report.hand_overs]
    if report.tokens_per_second:
        quality = report.quality
        lines.append(f"pacing: {report.tokens_per_second:.1f} tokens/s, {quality.stalls} stalls, {quality.delayed_tokens} late tokens")
    lines.append(f"cost: {format_usd(report.cost_usd)}; the server alone would have cost {format_usd(_server_alone(report))}")
    return [f"  {line}" for line in lines]


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
    if report.tokens_per_second:
        lines.append(f"speed: {report.tokens_per_second:.1f} tokens/s, {report.quality.stalls} stalls")
    lines.append(f"cost: {format_usd(report.cost_usd)}; the server alone would have cost {format_usd(_server_alone(report))}")
    return lines


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _when(wait: float | None) -> str:
    if wait is None:
        return "only if the other fails"
    return "at once" if wait < 0.005 else f"after {format_seconds(wait)} if nothing has come by then"


def _endpoint_line(part: EndpointReport) -> str:
    if part.opened is None:
        return f"{part.name}: not asked, the other one was in time"
    when = "at once" if part.opened < 0.005 else f"after {format_seconds(part.opened)}"
    about = "~" if part.is_estimated else ""
    if part.outcome == "read ahead":
        return f"{part.name}: read prompt and answer ahead {when}, {about}{part.prompt_tokens} tokens"
    first = f"first token {format_seconds(part.ttft)} later" if part.ttft is not None else "stopped before its first token"
    verb = {"won": "done", "lost": "stopped", "failed": "failed", "took over": "went on, done"}[part.outcome]
    return f"{part.name}: asked {when}, {first}; {verb} after {about}{part.completion_tokens} tokens"


def _change_line(change: HandOver) -> str:
    """Return why an answer moved, and what its reader saw of it."""
    why = f"saved {format_saving(change.saved_usd)}" if change.is_planned else change.reason
    seen = f"{change.buffered} tokens were in hand, and the reader waited for {change.delayed_tokens} tokens"
    return f"hand-over: after token {change.position}, first token {format_seconds(change.pause)} later; {seen}; {why}"


def _server_alone(report: Report) -> float | None:
    """Return the cost of the same answer from the server alone, US dollars; None if a price is not known."""
    prompts = [part.prompt_tokens for part in report.endpoints if part.kind == "server" and part.opened is not None]
    prompt = prompts[0] if prompts else report.dispatch.prompt_tokens
    if PRICES.prompt is None or PRICES.completion is None:
        return None
    return prompt * PRICES.prompt + report.tokens * PRICES.completion
