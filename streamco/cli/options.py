"""The options that chat and demo share, and helpers that parse their values."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn, TypeVar

from streamco.cli.ui.slash_commands import MODES, POLICIES, USUAL_PACE, parse_budget, parse_pace_text, parse_policy
from streamco.endpoints.base import TokenPrices
from streamco.errors import ConfigError, shorten

if TYPE_CHECKING:
    from streamco.client.modes.race.quality_gate import QualityGate
    from streamco.policies.ways import Weights

__all__ = [
    "DRAFTERS",
    "DRAFTER_HELP",
    "add_answer_arguments",
    "add_client_key_arguments",
    "add_conversation_arguments",
    "add_look_arguments",
    "add_prompt_arguments",
    "api_key_of",
    "budget_of",
    "device_path_of",
    "model_file",
    "number",
    "option",
    "parse_weights",
    "prices",
    "quality_of",
    "take_prompt",
    "whole_number",
]

DRAFTERS = ("device", "lookup")
DRAFTER_HELP = "what drafts: device: its model; lookup: what stood before in prompt and answer, without a model (device)"

T = TypeVar("T")


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for one prompt instead of a conversation."""
    group = parser.add_argument_group("one prompt")
    group.add_argument("text", nargs="?", metavar="PROMPT", help="answer this and leave; the same as --prompt")
    group.add_argument("--prompt", metavar="TEXT", help="answer this and leave; text on stdin, such as a file, is sent before it")
    group.add_argument("--json", action="store_true", help="with --prompt: print one JSON object, the text and the whole report, on stdout")


class _RefuseKey(argparse.Action):
    """Refuses a key on the command line, without repeating it."""

    def __call__(self, *_: object) -> NoReturn:
        raise argparse.ArgumentError(
            self,
            f"expected no key on the command line, where other users and logs see it, got one; put it into {self.const}, or into another "
            "environment variable that --client-key-env names",
        )


def add_client_key_arguments(group: argparse._ArgumentGroup, variable: str, *, action: Literal["store", "append"] = "store") -> None:
    """Add the option for the key that clients must send. By default the key is in the environment variable ``variable``."""
    more = "; again for each of several" if action == "append" else ""
    group.add_argument(
        "--client-key-env",
        action=action,
        metavar="VAR",
        help=f"environment variable with the key that clients must send as bearer token{more} ({variable}, if it is set)",
    )
    group.add_argument("--api-key", action=_RefuseKey, const=variable, help=argparse.SUPPRESS)


def take_prompt(args: argparse.Namespace) -> None:
    """Treat a prompt that was given without an option as ``--prompt``.

    Raises:
        ConfigError: both are given.
    """
    if args.text is None:
        return
    if args.prompt is not None:
        raise ConfigError("prompt: can be given alone or after --prompt, not both")
    args.prompt = args.text


def add_conversation_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for conversations that are kept."""
    group = parser.add_argument_group("conversations")
    group.add_argument("-c", "--continue", dest="goes_on", action="store_true", help="go on with the last conversation")
    group.add_argument("--no-save", action="store_true", help="keep nothing of this conversation (so does STREAMCO_NO_SAVE=1)")
    group.add_argument("--lines", action="store_true", help="without --prompt: each line of stdin is a prompt or a command of its own")


def add_answer_arguments(parser: argparse.ArgumentParser, modes: Sequence[str] = MODES) -> None:
    """Add the options for how answers are made, with ``modes`` as the values for ``--mode``."""
    group = parser.add_argument_group("answers")
    group.add_argument(
        "--budget",
        type=option(parse_budget),
        default=None,
        metavar="SHARE",
        help="share of the work for the expensive side: of prompt tokens in a race (0.3), of drafted tokens that are verified (1)",
    )
    group.add_argument(
        "--mode",
        choices=modes,
        default="race",
        help="race: the first side writes it all; speculate: the device drafts, the server verifies; auto: the faster mode (race)"
        + ("; split: a model in parts, its middle at --server URL" if "split" in modes else ""),
    )
    group.add_argument(
        "--policy", type=option(parse_policy), default="auto", metavar="NAME", help=f"which side starts when: {', '.join(POLICIES)}"
    )
    group.add_argument(
        "--pace",
        type=option(parse_pace_text),
        default=USUAL_PACE,
        metavar="RATE",
        help="tokens per second, reading (4.8), listening (3.5), smooth (as they come, but evenly) or off (smooth on a terminal, else off)",
    )
    group.add_argument("--no-migration", action="store_true", help="the side that begins an answer writes it to the end, whatever it costs")
    group.add_argument(
        "--min-quality",
        type=option(parse_share),
        metavar="SHARE",
        help="an answer moves only to a model of at least this share of the quality, by --profile (to none that is known to be worse)",
    )
    group.add_argument(
        "--quality", choices=("gate",), help="gate: the server answers if the device is unsure of its answer, by --min-score or by ratings"
    )
    group.add_argument(
        "--min-score",
        type=option(parse_share),
        metavar="SCORE",
        help="with --quality gate: how likely, on the mean, the device's first tokens must be to itself for its answer to be shown, 0 to 1",
    )
    group.add_argument("--system", metavar="TEXT", help="system message")
    group.add_argument("--max-tokens", type=option(whole_number), metavar="N", help="longest answer, in tokens")
    group.add_argument("--temperature", type=option(number), metavar="T", help="0: always the likeliest token")
    group.add_argument("--seed", type=int, metavar="N", help="make sampling repeatable, if the endpoint can")


def parse_weights(text: str) -> Weights:
    """Parse weights such as ``time=0.01,money=1``.

    Raises:
        ConfigError: the text isn't weights.
    """
    from streamco.policies.ways import Weights

    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in Weights.__struct_fields__ or name in found:
            raise ConfigError(f"weights: expected time=N, money=N and quality=N, each once at most, got {shorten(text)!r}")
        found[name] = number(value)
    return Weights(**found)


def budget_of(args: argparse.Namespace) -> float:
    """Return the budget. By default it is 1 in mode speculate, or if weights say what a dollar is worth, and 0.3 otherwise."""
    weights = getattr(args, "weights", None)
    is_free = args.mode == "speculate" or (weights is not None and weights.money)
    return args.budget if args.budget is not None else 1.0 if is_free else 0.3


def quality_of(args: argparse.Namespace) -> QualityGate | None:
    """Return the quality gate of races, if any.

    Raises:
        ConfigError: a score is given without a gate, the mode has no races, or the gate has nothing to decide by.
    """
    if args.quality is None:
        if args.min_score is not None:
            raise ConfigError("--min-score: only valid with --quality gate")
        return None
    if args.mode not in {"race", "auto"}:
        raise ConfigError(f"--quality gate: expected --mode race or auto, got {args.mode}")
    if args.min_score is None and getattr(args, "profile", None) is None:
        raise ConfigError("--quality gate: expected --min-score SCORE, or --profile FILE, which keeps ratings (/good, /bad), got neither")
    from streamco.client.modes.race.quality_gate import QualityGate

    return QualityGate(min_score=args.min_score)


def add_look_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the appearance."""
    group = parser.add_argument_group("looks")
    group.add_argument("--theme", choices=("auto", "dark", "light", "mono"), default="auto", help="tints for a dark or a light background")
    group.add_argument("--no-color", action="store_true", help="no colours (so does NO_COLOR in the environment)")


def option(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Make an argparse type from a parser that raises ``ConfigError``, so that the error becomes a usage error."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def whole_number(text: str) -> int:
    """Parse a whole number above 0.

    Raises:
        ConfigError: the text isn't one.
    """
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise ConfigError(f"expected a whole number above 0, got {text!r}")


def number(text: str) -> float:
    """Parse a number of 0 or more.

    Raises:
        ConfigError: the text isn't one.
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if 0 <= value < float("inf"):
        return value
    raise ConfigError(f"expected a number, 0 or more, got {text!r}")


def parse_share(text: str) -> float:
    """Parse a share from 0 to 1, such as ``0.9`` or ``90%``.

    Raises:
        ConfigError: the text isn't one.
    """
    word = text.strip()
    value = number(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
    if value <= 1.0:
        return value
    raise ConfigError(f"expected a share from 0 to 1, such as 0.9 or 90%, got {text!r}")


def prices(text: str) -> TokenPrices:
    """Parse two prices such as ``0.15/0.6``: US dollars per million tokens of prompt and of answer.

    Raises:
        ConfigError: the text isn't two prices.
    """
    prompt, _, completion = text.partition("/")
    try:
        return TokenPrices(prompt=number(prompt) / 1e6, completion=number(completion) / 1e6)
    except ConfigError:
        raise ConfigError(f"expected two prices such as 0.15/0.6, got {text!r}") from None


def api_key_of(variable: str | None, setting: str = "--api-key-env") -> str | None:
    """Return the key in an environment variable, or None to use the endpoint's default. ``setting`` is the option that names the variable.

    Raises:
        ConfigError: the variable isn't set, or the text isn't a variable's name (it isn't repeated, because it may be a key).
    """
    if variable is None:
        return None
    from streamco.endpoints.address import read_key

    return read_key(variable, setting=setting)


def model_file(path: str, name: str) -> Path:
    """Return the path of the model that was given with the option ``name``.

    Raises:
        ConfigError: there is no such file, or ``hf:org/repo:QUANT`` isn't in the cache.
    """
    from streamco.endpoints.model_files import path_of

    file = path_of(path)
    if not file.is_file():
        parts = " (but parts of a split model: these need --split URL)" if Path(f"{file}.input.gguf").is_file() else ""
        raise ConfigError(f"{name}: expected a GGUF file, got nothing at {path}{parts}")
    return file


def device_path_of(path: str | None, *, has_server: bool) -> Path | None:
    """Return the path of the device model, which is the given file or else the packaged one, or None if there is only a server.

    Raises:
        ConfigError: the file is missing, or there is neither a model nor a server.
    """
    if path is not None:
        return model_file(path, "--device")
    from streamco.engines.llamacpp.bundled_model import packaged_model
    from streamco.errors import EngineError

    try:
        return packaged_model()
    except EngineError:
        if has_server:
            return None
        raise ConfigError(
            "expected a device model or a server, got neither: give --device FILE.gguf or URL, or --server MODEL, "
            "or fetch a small model: streamco models get packaged"
        ) from None
