"""``streamco demo --split``: the packaged model in three parts, its ends in this process and its middle in a server's (docs/split.md)."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from streamco.cli.runtime import waiting
from streamco.cli.server_process import running_server
from streamco.cli.ui.answer import AnswerSettings, read_answer
from streamco.cli.ui.slash_commands import pace_text
from streamco.cli.ui.talk import answer_prompt, converse, is_interactive
from streamco.cli.ui.view import View
from streamco.client.client import Client
from streamco.core.report import SplitFigures
from streamco.endpoints.verifiers.split import SplitEndpoint
from streamco.errors import ConfigError

__all__ = ["check_split_arguments", "explain_split", "run_split_demo"]

PROMPTS = ("Why is the sky blue?", "Name three rivers in France.")
MAX_TOKENS = 40


def check_split_arguments(args: argparse.Namespace, *, latency: str) -> None:
    """Check that no option is given that has no effect on a split model; ``latency`` is the usual value of that option.

    Raises:
        ConfigError: one is given.
    """
    for name, usual in (
        ("mode", "race"),
        ("budget", None),
        ("policy", "device-constrained"),
        ("no_migration", False),
        ("latency", latency),
    ):
        if (value := getattr(args, name)) != usual:
            raise ConfigError(f"--{name.replace('_', '-')}: expected none with --split, where one model makes the answer, got {value}")


async def run_split_demo(args: argparse.Namespace, view: View) -> int:
    """Show what leaves the device, and return the exit code."""
    async with _parts() as client:
        if args.prompt is not None:
            return await answer_prompt(client, args, view)
        view.legend({"split": "SmolLM2-135M in three parts: first two layers and head here, 28 layers at a server on this machine"})
        view.note("The server has no tokenizer and gets no text: only hidden states go to it and come back.")
        view.note("They hide nothing from a server that looks for the text: see docs/split.md.")
        view.note("A model this small is faster in one piece. A split is for models that don't fit the device.")
        view.note(f"pace   {pace_text(args.pace)}")
        code = await _play(client, args, view)
        if code == 0 and is_interactive(args):
            view.heading("now you: ask anything, /report tells all about an answer")
            return await converse(client, args, view)
        return code


@asynccontextmanager
async def _parts() -> AsyncIterator[Client]:
    """Cut the model, start a server with its middle, and yield a client that has its ends."""
    from streamco.engines.base import EngineOptions
    from streamco.engines.llamacpp.bundled_model import packaged_model
    from streamco.engines.llamacpp.model_parts import split_model

    options = ("--middle", "--port", "0", "--threads", "1")
    with tempfile.TemporaryDirectory(prefix="streamco-parts-") as folder:
        async with AsyncExitStack() as stack:
            async with waiting("cutting the model"):
                files = await asyncio.to_thread(split_model, packaged_model(), folder)
            async with waiting("starting the server"):
                url = await stack.enter_async_context(running_server("--model", str(files.middle), *options))
            endpoint = SplitEndpoint(files.stem, url, options=EngineOptions(threads=1))
            yield await stack.enter_async_context(Client(endpoint, mode="split"))


async def _play(client: Client, args: argparse.Namespace, view: View) -> int:
    """Answer the built-in prompts, say what went over the wire, and return the exit code."""
    settings = AnswerSettings(pace=args.pace, max_tokens=args.max_tokens or MAX_TOKENS, temperature=args.temperature or 0.0, seed=args.seed)
    system = [{"role": "system", "content": args.system}] if args.system else []
    for number, prompt in enumerate(PROMPTS, 1):
        view.heading(f"{number}. {prompt}")
        answer = await read_answer(client, [*system, {"role": "user", "content": prompt}], settings, view)
        if answer.ending:
            return answer.exit_code
        if answer.report is not None and answer.report.split is not None:
            view.note("\n".join(f"  {line}" for line in explain_split(answer.report.split)))
    return 0


def explain_split(figures: SplitFigures) -> Sequence[str]:
    """Return what one answer sent and received, as plain lines."""
    per_trip = "" if figures.tokens_per_trip is None else f", {figures.tokens_per_trip:.2f} tokens a trip"
    drafts = f" ({figures.accepted} of {figures.drafted} drafted tokens were right)" if figures.drafted else ""
    return (
        f"up:    {figures.rows_up} hidden states of prompt and answer, {figures.bytes_up} bytes",
        f"down:  {figures.rows_down} hidden states in {figures.trips} trips, {figures.bytes_down} bytes",
        f"trips: {figures.trips}{per_trip}{drafts}",
        f"sent:  {figures.sent}",
    )
