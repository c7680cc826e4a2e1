"""``streamco calibrate``: measures the figures that policies plan with, and saves them in a profile."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from streamco.cli.options import api_key_of, device_path_of, option, whole_number
from streamco.cli.runtime import run_async, waiting
from streamco.cli.ui.control_characters import escaped, print_plain
from streamco.config import READING
from streamco.core.report_text import format_seconds
from streamco.errors import ConfigError, EndpointError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamco.calibration.quality import CurvePoint, MeasuredAnswer
    from streamco.endpoints.device import DeviceEndpoint
    from streamco.endpoints.verifiers.base import Verifier
    from streamco.profiles import DeviceSpeed, PairProfile

__all__ = ["add_arguments", "format_device", "format_pair", "format_verdict", "run"]

BAR = 24  # cells
TYPICAL = 200  # tokens of the prompt for which the verdict is given
MARGIN = 0.05  # relative difference of two rates from which one is recommended

DESCRIPTION = """\
Without a server this measures how fast the model on this machine reads and writes. With --verifier or --server it measures the model as
the draft model of that verifier: it answers prompts greedily, one by one, with every draft verified. Run it as the application runs and
on its machine, with nothing else at work. The verdict comes first; docs/profiles.md explains the figures.
--quality lets the model on this machine answer prompts like the application's, and says which --min-score sends how many of its
answers to a server, and how many of the bad ones (docs/howto/quality.md).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``streamco calibrate``."""
    parser.description = DESCRIPTION
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--pair", action="store_true", help="measure a draft model and its verifier, as --verifier or --server alone do")
    what.add_argument(
        "--quality",
        type=Path,
        metavar="FILE",
        help='measure how sure a model is of good and bad answers: one {"prompt": "...", "expected": ["..."]} a line',
    )
    pair = parser.add_argument_group("the pair")
    pair.add_argument("--device", metavar="FILE", help="GGUF model that drafts or answers (the packaged one)")
    pair.add_argument("--threads", type=option(whole_number), metavar="N", help="threads of that model (a fair share of the cores)")
    pair.add_argument("--verifier", metavar="URL", help="URL of a streamco serve that verifies, wss://HOST:PORT")
    pair.add_argument("--server", metavar="MODEL", help="instead: model of an OpenAI-compatible server that verifies (docs/speculation.md)")
    pair.add_argument("--base-url", metavar="URL", help="base URL of that server")
    pair.add_argument("--api-key-env", metavar="VAR", help="environment variable with the verifier's or server's key")
    how = parser.add_argument_group("measuring")
    how.add_argument("--prompts", type=Path, metavar="FILE", help="prompts like the application's, one a line (a dozen packaged ones)")
    how.add_argument("--rounds", type=option(whole_number), default=120, metavar="N", help="drafts to verify (120)")
    how.add_argument("--window", type=option(whole_number), default=4, metavar="N", help="tokens of a draft (4)")
    how.add_argument("--sequences", type=option(whole_number), default=6, metavar="N", help="branches side by side, at most (6)")
    how.add_argument("--max-tokens", type=option(whole_number), default=64, metavar="N", help="tokens of each answer at most (64)")
    out = parser.add_argument_group("result")
    out.add_argument("--profile", type=Path, metavar="FILE", help="keep the figures in this profile; the rest of the file stays")
    out.add_argument("--json", action="store_true", help="print the figures as JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Measure and print; the exit code is 0.

    Raises:
        StreamcoError: the pair can't be measured, or the profile can't be written.
    """
    if args.quality is not None:
        for name, value in {"--verifier": args.verifier, "--server": args.server, "--prompts": args.prompts}.items():
            if value is not None:
                raise ConfigError(f"{name}: can't be combined with --quality, which measures the device alone")
        return run_async(lambda: _calibrate_quality(args))
    if args.verifier is not None and args.server is not None:
        raise ConfigError("calibrate: expected either --verifier URL or --server MODEL, got both")
    if args.base_url is not None and args.server is None:
        raise ConfigError("--base-url: only valid with --server MODEL")
    if args.verifier is not None or args.server is not None:
        return run_async(lambda: _calibrate(args))
    if args.api_key_env is not None:
        raise ConfigError("--api-key-env: only valid with --verifier URL or --server MODEL")
    if args.pair:
        print_plain("neither --verifier URL nor --server MODEL is named, so the device is measured alone", sys.stderr)
    return run_async(lambda: _calibrate_device(args))


async def _calibrate(args: argparse.Namespace) -> int:
    from msgspec.structs import replace

    from streamco.calibration.profile_store import begin_profile, save_profile
    from streamco.profiles import Link

    begin_profile(args.profile)  # reports any problem with the file right away
    pair = await _measure(args)
    if args.profile is not None:
        profile = begin_profile(args.profile)
        link = profile.link if pair.rtt is None else replace(profile.link or Link(rtt=0.0), rtt=pair.rtt)
        save_profile(replace(profile, pair=pair, link=link), args.profile)
    print_plain(escaped(_as_json(pair)) if args.json else format_pair(pair))
    if args.profile is not None:
        print_plain(f"kept in {args.profile}", sys.stderr)
    return 0


def _lone_device(args: argparse.Namespace) -> tuple[Path, DeviceEndpoint]:
    """Return a model's file, and a device that answers with it, one prompt at a time.

    Raises:
        ConfigError: the model file doesn't exist.
    """
    from streamco.endpoints.device import DeviceEndpoint
    from streamco.engines.base import EngineOptions

    path = device_path_of(args.device, has_server=False)
    if path is None:
        raise AssertionError("without a server there is a device, or an error")
    return path, DeviceEndpoint(path, options=EngineOptions(threads=args.threads, max_sequences=1))


@asynccontextmanager
async def _loaded(device: DeviceEndpoint) -> AsyncIterator[None]:
    """Keep the device's model loaded inside the block."""
    try:
        async with waiting("loading the model"):
            await device.start()
        yield
    finally:
        await device.aclose()


async def _calibrate_device(args: argparse.Namespace) -> int:
    from msgspec.structs import replace

    from streamco.calibration.device_speed import measure_device_speed
    from streamco.calibration.profile_store import begin_profile, save_profile
    from streamco.calibration.prompts import PROMPTS, read_prompts

    texts = PROMPTS if args.prompts is None else read_prompts(args.prompts)
    begin_profile(args.profile)  # reports any problem with the file right away
    path, device = _lone_device(args)
    async with _loaded(device):
        bar = ProgressText("reading prompts", "prompts read, writing")
        async with waiting(bar):
            speed = await measure_device_speed(device, texts=texts, on_progress=bar.record)
    if args.profile is not None:
        save_profile(replace(begin_profile(args.profile), device=speed), args.profile)
    print_plain(escaped(_as_json(speed)) if args.json else format_device(path.stem, speed))
    if args.profile is not None:
        print_plain(f"kept in {args.profile}", sys.stderr)
    return 0


async def _calibrate_quality(args: argparse.Namespace) -> int:
    from streamco.calibration.profile_store import add_ratings, begin_profile
    from streamco.calibration.quality import curve, fit_score, measure_answers, read_labelled

    prompts = read_labelled(args.quality)
    begin_profile(args.profile)  # reports any problem with the file right away
    path, device = _lone_device(args)
    async with _loaded(device):
        bar = ProgressText("answering prompts", "prompts done")
        async with waiting(bar):
            answers, failures = await measure_answers(device, prompts, max_tokens=args.max_tokens, on_progress=bar.record)
    if failures:
        print_plain(f"{len(failures)} of {len(prompts)} prompts skipped, the first because of: {escaped(str(failures[0]))}", sys.stderr)
    points = curve(answers)
    if args.json:
        print_plain(escaped(_curve_json(points)))
    else:
        print_plain(format_quality(path.stem, answers, points))
    if args.profile is not None:
        print_plain(f"{add_ratings(fit_score(answers).examples, args.profile)} ratings kept in {args.profile}", sys.stderr)
    return 0


def _curve_json(points: Sequence[CurvePoint]) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(points), indent=1).decode()


def format_quality(model: str, answers: Sequence[MeasuredAnswer], points: Sequence[CurvePoint]) -> str:
    """Return the measurements of a device's answers as a readable table."""
    judged = [each.good for each in answers if each.good is not None]
    known = f": {sum(judged)} good, {len(judged) - sum(judged)} not" if judged else ""
    lines = [f"{len(answers)} answers of {model}{known}", "", "to the server   --min-score   bad answers among them   by a learned score"]
    for point in points:
        caught = ["not known" if share is None else f"{share:.0%}" for share in (point.caught, point.caught_learned)]
        lines.append(f"{point.share:>13.0%}   {_score_text(point.min_score):>11}   {caught[0]:>22}   {caught[1]:>18}")
    return "\n".join(lines)


def _score_text(score: float) -> str:
    """Return a threshold with all its digits, at least two."""
    text = f"{score:.2f}"
    return text if float(text) == score else str(score)


async def _measure(args: argparse.Namespace) -> PairProfile:
    from streamco.calibration.measure import calibrate_pair
    from streamco.calibration.prompts import PROMPTS, read_prompts
    from streamco.endpoints.base import Request

    prompts = PROMPTS if args.prompts is None else read_prompts(args.prompts)
    requests = [Request(messages=[{"role": "user", "content": prompt}]) for prompt in prompts]
    device = make_device(args)
    try:
        async with waiting("loading the model"):
            await device.start()
        verifier = await make_verifier(args)
        try:
            bar = ProgressText()
            async with waiting(bar):
                return await calibrate_pair(
                    device,
                    verifier,
                    requests,
                    rounds=args.rounds,
                    window=args.window,
                    sequences=args.sequences,
                    answer_tokens=args.max_tokens,
                    on_progress=bar.record,
                )
        finally:
            await verifier.aclose()
    finally:
        await device.aclose()


class ProgressText:
    """A text with a progress bar. At the end it says what was done and what follows.

    Args:
        work: the work, such as "reading prompts".
        things: what is counted, and the work that follows, such as "prompts read, writing".
    """

    def __init__(self, work: str = "verifying drafts", things: str = "drafts verified, timing steps and batches") -> None:
        self._work, self._things = work, things
        self._done = self._whole = 0

    def record(self, done: int, whole: int) -> None:
        """Record how many are done and how many there are in all."""
        self._done, self._whole = done, whole

    def __str__(self) -> str:
        """Return the current text."""
        if not self._whole:
            return self._work
        if self._done >= self._whole:
            return f"{self._whole} {self._things}"
        filled = BAR * self._done // self._whole
        return f"{self._work} {'█' * filled}{'░' * (BAR - filled)} {self._done}/{self._whole}"


def make_device(args: argparse.Namespace) -> DeviceEndpoint:
    """Return the device that drafts. Its attention is read, to measure importance.

    Raises:
        ConfigError: the model file doesn't exist.
    """
    from streamco.endpoints.device import DeviceEndpoint
    from streamco.engines.base import EngineOptions
    from streamco.policies.importance import LAYERS

    path = device_path_of(args.device, has_server=False)
    if path is None:
        raise AssertionError("without a server there is a device, or an error")
    held = args.sequences + 2
    return DeviceEndpoint(path, options=EngineOptions(threads=args.threads, max_sequences=1, held_sequences=held, attention_layers=LAYERS))


async def make_verifier(args: argparse.Namespace) -> Verifier:
    """Return the verifier: the given one, or the one found at the server's address.

    Raises:
        ConfigError: the URL or the key is invalid.
        EndpointError: the server doesn't answer, or doesn't verify.
    """
    key = api_key_of(args.api_key_env)
    if args.verifier is not None:
        from streamco.endpoints.verifiers.streamco import VerifierEndpoint

        return VerifierEndpoint(args.verifier, token=key)
    from streamco.endpoints.openai import OpenAIEndpoint
    from streamco.endpoints.verifiers.discovery import find_verifier

    server = OpenAIEndpoint(args.server, base_url=args.base_url, api_key=key)
    try:
        await server.start()
        verifier = await find_verifier(server)
    finally:
        await server.aclose()
    if verifier is None:
        raise EndpointError("expected a server that verifies, got one of another kind", endpoint=server.name)
    return verifier


def format_device(model: str, speed: DeviceSpeed) -> str:
    """Return a device's speed as readable text: a line that says what the speed means, then the figures."""
    rate = speed.decode_tokens_per_s
    writes = "not measured" if rate is None else f"{1000 / rate:.1f} ms a token"
    rows = [
        ("prompt", f"{1000 * speed.seconds_per_token:.2f} ms a token and {1000 * speed.overhead:.0f} ms once"),
        ("first token", " · ".join(f"{tokens} tokens: {format_seconds(speed.ttft(tokens))}" for tokens in (50, 200, 1000))),
        ("answer", writes),
    ]
    verdict = f"{model}: first token after {format_seconds(speed.ttft(TYPICAL))} for a prompt of {TYPICAL} tokens"
    verdict += "" if rate is None else f", then {rate:.1f} tokens/s; a person reads {READING}"
    more = "With --verifier URL or --server MODEL it also says whether drafting pays."
    table = "\n".join(f"{name:<14}{text}" for name, text in rows)
    return f"{verdict}\n\n{table}\n\n{more}"


def format_pair(pair: PairProfile) -> str:
    """Return a pair's figures as readable text: first whether drafting pays, then a table."""
    from streamco.policies.acceptance import expected_tokens

    rows = [
        ("pair", f"{pair.draft} drafts, {pair.target} verifies; {pair.rounds} drafts of up to {pair.window} tokens"),
        ("acceptance", f"{pair.acceptance:.3f}, so {expected_tokens(pair.acceptance, pair.window):.2f} tokens a round"),
        ("prediction", "not known" if pair.hit_rate is None else f"{pair.hit_rate:.2f} of the rounds would have met a branch"),
        ("confidence", "not known" if pair.confidence_threshold is None else f"c_th {pair.confidence_threshold:.3f}"),
        ("importance", _thresholds(pair)),
        ("round trip", _milliseconds(pair.rtt)),
        ("verdict", f"{_milliseconds(pair.wait)} after its draft"),
        ("verify batch", " · ".join(f"{size}: {_milliseconds(time)}" for size, time in pair.verify_times) or "not reported"),
        ("draft step", " · ".join(f"{count}: {_milliseconds(time)}" for count, time in enumerate(pair.step_times, start=1))),
        ("remote step", _milliseconds(pair.remote_step)),
    ]
    table = "\n".join(f"{name:<14}{text}" for name, text in [*rows, *([("note", pair.note)] if pair.note else [])])
    return f"{format_verdict(pair)}\n\n{table}"


def format_verdict(pair: PairProfile) -> str:
    """Return one line that says whether drafting pays, with the tokens/s expected from drafts as measured and from the server alone."""
    from streamco.policies.mode_switch import RoundConditions, predict_rates

    rates = predict_rates(
        RoundConditions(
            acceptance=pair.acceptance,
            window=pair.window,
            draft_step=pair.step_times[0],
            remote_step=pair.remote_step or 1.0,
            verify=pair.wait,
            hit_rate=pair.hit_rate or 0.0,
            slowdown=pair.step_times[-1] / pair.step_times[0],
        )
    )
    ahead = f" ({rates.parallel:.1f} if it drafts ahead of verdicts)" if rates.parallel >= rates.waiting + 0.05 else ""
    drafting = f"drafting: about {rates.waiting:.1f} tokens/s{ahead}"
    if pair.remote_step is None:
        return f"{drafting}, server alone not measured"
    gain = rates.speculative / rates.remote
    advice = "do" if gain >= 1.0 + MARGIN else "don't" if gain <= 1.0 - MARGIN else "about the same, so measure it in use"
    return f"{drafting}, server alone {rates.remote:.1f}: {advice}"


def _thresholds(pair: PairProfile) -> str:
    shown = [f"{budget:g}: {threshold:.4f}" for budget, threshold in pair.importance_thresholds]
    return "i_th by budget  " + " · ".join(shown) if shown else "not measured"


def _milliseconds(seconds: float | None) -> str:
    return "not known" if seconds is None else f"{1000 * seconds:.1f} ms"


def _as_json(figures: PairProfile | DeviceSpeed) -> str:
    import msgspec

    return msgspec.json.encode(figures).decode()
