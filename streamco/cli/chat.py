"""``streamco chat``: talks to the model on this device and to a server at the same time."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import asdict, replace

from streamco.cli.model_switch import ModelSwitch, adopt_models
from streamco.cli.options import (
    DRAFTER_HELP,
    DRAFTERS,
    add_answer_arguments,
    add_conversation_arguments,
    add_look_arguments,
    add_prompt_arguments,
    api_key_of,
    budget_of,
    device_path_of,
    option,
    parse_weights,
    prices,
    quality_of,
    take_prompt,
    whole_number,
)
from streamco.cli.runtime import run_async, waiting
from streamco.cli.ui.attachments import Attachment, read_attachment
from streamco.cli.ui.history import ChatModels
from streamco.cli.ui.repl import check_images
from streamco.cli.ui.slash_commands import MODES
from streamco.cli.ui.talk import (
    OpenConversation,
    answer_prompt,
    converse,
    is_interactive,
    join_prompt,
    make_view,
    migration_of,
    open_conversation,
)
from streamco.client.client import Client
from streamco.client.modes.base import Mode
from streamco.client.modes.race.mode import Race
from streamco.client.modes.split.mode import Split
from streamco.endpoints.address import is_url
from streamco.endpoints.base import Endpoint
from streamco.endpoints.model_files import PACKAGED
from streamco.endpoints.verifiers.base import Verifier
from streamco.errors import ConfigError

if TYPE_CHECKING:
    from streamco.client.modes.speculation.options import Drafter
    from streamco.client.modes.speculation.verifier_binding import VerifierSetting
    from streamco.endpoints.split.endpoint import SplitEndpoint
    from streamco.profiles import Profile

__all__ = ["add_arguments", "run"]

VERIFIER, LOCAL, LOOKUP = "verifier", "local", "lookup"
DESCRIPTION = """\
Each prompt goes to a small model on this machine and to a server. The side with the first word answers, and the other is cancelled.
If the other side is cheaper, it may finish the answer.
On a terminal this is a conversation. With a prompt, as in streamco chat "Why?", or with text on stdin, which is one prompt then, the
answer goes to stdout. With both, the text on stdin is sent before the prompt: cat main.py | streamco chat "explain".
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``streamco chat``."""
    parser.description = DESCRIPTION
    group = parser.add_argument_group("endpoints")
    group.add_argument(
        "--device",
        metavar="PATH",
        help="GGUF file or hf:org/repo:QUANT of the model on this machine, 'packaged', or URL of a server that runs there, such as "
        "Ollama's http://127.0.0.1:11434 (packaged, if that model is installed)",
    )
    group.add_argument("--device-model", metavar="NAME", help="name of the model at --device URL (the only one there)")
    group.add_argument("--no-device", action="store_true", help="use the server alone")
    group.add_argument("--threads", type=option(whole_number), metavar="N", help="threads of the device model (half of the cores)")
    group.add_argument(
        "--server",
        metavar="MODEL",
        help="name of a remote model, such as gpt-4o-mini; with --mode split, the URL of a streamco serve --middle",
    )
    group.add_argument("--base-url", metavar="URL", help="base URL of any server that speaks the OpenAI API (OpenAI's own)")
    group.add_argument("--api-key-env", metavar="VAR", help="environment variable that holds the server's key (OPENAI_API_KEY)")
    group.add_argument(
        "--prices",
        type=option(prices),
        metavar="PROMPT/ANSWER",
        help="the server's prices in US dollars per million tokens, such as 0.15/0.6 (known for common models)",
    )
    group.add_argument(
        "--verifier",
        action="append",
        metavar="URL",
        help="URL of a streamco serve that verifies drafts, ws://HOST:PORT (the server itself); again for each of several",
    )
    group.add_argument("--routing", metavar="HOW", help="how answers are spread over several verifiers (join-shortest-queue)")
    group.add_argument("--drafter", choices=DRAFTERS, help=DRAFTER_HELP)
    group.add_argument(
        "--split",
        action="append",
        metavar="URL",
        help="URL of a streamco serve --middle, and --device parts/NAME the other parts; again for a server that goes on if it is lost",
    )
    group.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="begin with what `streamco calibrate` or an earlier client learned; with --quality gate, ratings are added at the end",
    )
    add_answer_arguments(parser, (*MODES, "split"))
    parser.add_argument(
        "--weights",
        type=option(parse_weights),
        metavar="time=N,money=N,quality=N",
        help="what a second of waiting, a dollar and a good answer are worth: each answer is made in the way that costs least by them",
    )
    add_prompt_arguments(parser)
    parser.add_argument(
        "-a",
        "--attach",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="send this file of text, or image, with the prompt, or with the first one; again for each of several",
    )
    add_conversation_arguments(parser)
    add_look_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the chat. The exit code is 0, or 1 if an endpoint failed, or 130 after Ctrl-C.

    Raises:
        StreamcoError: the chat can't start.
    """
    take_prompt(args)
    name_split_servers(args)
    kept = open_conversation(args)
    adopt_models(args, kept.conversation)
    check_options(args)
    if not args.lines and sys.stdin is not None and not sys.stdin.isatty():
        args.prompt = join_prompt(_piped_text(), args.prompt)
    elif args.lines and args.prompt is not None:
        raise ConfigError("--lines: can't be combined with --prompt, because it reads the prompts from stdin")
    if args.json and args.prompt is None:
        raise ConfigError("--json: only valid with --prompt TEXT")
    files = [read_attachment(path.expanduser()) for path in args.attach]
    return run_async(lambda: _chat(args, kept, files))


def name_split_servers(args: argparse.Namespace) -> None:
    """Treat ``--mode split --server URL`` as ``--split URL``.

    Raises:
        ConfigError: no server is given, or it is given as the name of a model.
    """
    if args.mode != "split" or args.split is not None:
        return
    if args.server is None:
        raise ConfigError("--mode split: needs --server URL, or --split URL for each of several servers")
    if "://" not in args.server:
        raise ConfigError(
            f"--server: expected the URL of a streamco serve --middle with --mode split (http://127.0.0.1:8000), got {args.server!r}"
        )
    args.split, args.server = [args.server], None


def check_options(args: argparse.Namespace) -> None:
    """Refuse options that would have no effect.

    Raises:
        ConfigError: an option needs another one, or contradicts it.
    """
    if args.split is not None:
        _check_split(args)
    if args.weights is not None and args.mode == "speculate":
        raise ConfigError("--weights: can't be combined with --mode speculate, because the weights choose the mode")
    needs_server = {"--base-url": args.base_url, "--policy server-only": args.policy == "server-only" or None}
    for name, value in needs_server.items():
        if value is not None and args.server is None:
            raise ConfigError(f"{name}: only valid with --server MODEL")
    for name, value in {"--prices": args.prices, "--api-key-env": args.api_key_env}.items():
        if value is not None and args.server is None and args.verifier is None and args.split is None:
            raise ConfigError(f"{name}: only valid with --server MODEL or --verifier URL")
    for name, value in {
        "--device": args.device,
        "--threads": args.threads,
        "--policy device-only": args.policy == "device-only" or None,
    }.items():
        if value is not None and args.no_device:
            raise ConfigError(f"{name}: expected a device, got --no-device")
    _check_local_server(args)
    if args.routing is not None and len(args.verifier or ()) < 2:
        raise ConfigError(f"--routing: only valid with several --verifier URL, got {len(args.verifier or ())}")
    if args.verifier is not None and args.mode == "race":
        raise ConfigError("--verifier: only valid with --mode speculate or --mode auto, got race, in which nothing is verified")
    if args.drafter is not None and args.mode == "race":
        raise ConfigError("--drafter: only valid with --mode speculate or --mode auto, got race, in which nothing is drafted")


def _check_local_server(args: argparse.Namespace) -> None:
    """Refuse options that have no effect with a device at a URL, or without one.

    Raises:
        ConfigError: there is such an option.
    """
    if not is_at_url(args):
        if args.device_model is not None:
            raise ConfigError("--device-model: only valid with --device URL")
        return
    if args.threads is not None:
        raise ConfigError("--threads: can't be combined with --device URL, where the server decides")
    drafting = "--verifier" if args.verifier is not None else f"--mode {args.mode}" if args.mode in {"speculate", "auto"} else None
    if drafting is not None and args.drafter != LOOKUP:
        raise ConfigError(f"{drafting}: expected --device PATH, a model in this process that can draft, got the URL of a server")


def is_at_url(args: argparse.Namespace) -> bool:
    """Return True if the device is a server at a URL."""
    return args.device is not None and is_url(args.device)


def _check_split(args: argparse.Namespace) -> None:
    """Refuse options that have no effect with --split, and a missing --device.

    Raises:
        ConfigError: there is such an option, or no --device.
    """
    if args.device is None:
        raise ConfigError("--split: only valid with --device parts/NAME")
    for name, value in {
        "--server": args.server,
        "--verifier": args.verifier,
        "--drafter": args.drafter,
        "--prices": args.prices,
        "--budget": args.budget,
        "--profile": args.profile,
        "--quality": args.quality,
        "--weights": args.weights,
        f"--policy {args.policy}": None if args.policy == "auto" else args.policy,
        f"--mode {args.mode}": None if args.mode in {"race", "split"} else args.mode,
        "--base-url": args.base_url,
        "--no-device": args.no_device or None,
    }.items():
        if value is not None:
            raise ConfigError(f"{name}: can't be combined with --split, in which one model makes the whole answer")


def _piped_text() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ConfigError(f"stdin: expected text, got bytes that can't be decoded: {error}") from error


class _Parts:
    """Makes the parts of a chat from its options; see ``ChatParts``.

    Args:
        former: the profile as it was before this chat, or None if nothing will be added to a profile at the end.
    """

    def __init__(self, former: Profile | None) -> None:
        self.former = former

    def check(self, args: argparse.Namespace) -> None:
        """Refuse options that contradict each other."""
        check_options(args)

    def device(self, args: argparse.Namespace) -> Endpoint | None:
        """Return the device, if there is one."""
        return make_device(args)

    def server(self, args: argparse.Namespace) -> Endpoint | None:
        """Return the server, if there is one."""
        return make_server(args)

    def waiting(self, args: argparse.Namespace) -> AbstractAsyncContextManager[None]:
        """Return a context manager that tells the user what is taking a while."""
        return waiting("asking the device" if is_at_url(args) else "loading the model")

    def client(self, args: argparse.Namespace, device: Endpoint | None, server: Endpoint | None) -> Client:
        """Return a client for both sides."""
        # without prices no answer can move for its cost, and the user asked for nothing else
        migration = migration_of(args) if server is not None and server.prices.completion is not None else None
        race = Race(policy=args.policy, migration=migration, quality=quality_of(args))
        weights = {} if args.weights is None else asdict(args.weights)
        return Client(
            device,
            server,
            budget=args.budget,
            mode=_mode(args.mode, race, make_verifier(args), args.drafter or "device", weights),
            profile=None if "begins_anew" in args else args.profile if self.former is None else self.former.to_json(),
            on_degraded="answer",  # a person sees the note under the answer
            seed=args.seed,
        )

    def keep(self, client: Client, path: Path | None) -> None:
        """Add what a client has learned to the profile, once."""
        former, self.former = self.former, None
        if former is not None and path is not None:
            _keep_profile(client, former, path)


async def _chat(args: argparse.Namespace, kept: OpenConversation, files: Sequence[Attachment]) -> int:
    learns = args.quality or (args.weights is not None and args.weights.quality)
    parts = _Parts(_begin_profile(args.profile) if learns and args.profile else None)
    split = make_split(args) if args.split else None
    device, server = split or make_device(args), make_server(args)
    kinds: dict[str, str] = {endpoint.name: endpoint.kind for endpoint in (device, server) if endpoint is not None}
    kinds |= dict.fromkeys(verifier_names(args), "server")
    if args.drafter == LOOKUP:
        kinds[LOOKUP] = "device"
    if args.mode in {"speculate", "auto"} and budget_of(args) < 1 and args.drafter != LOOKUP:
        kinds[LOCAL] = "local"
    view = make_view(args, kinds)
    client = parts.client(args, device, server) if split is None else Client(mode=Split(split))  # each answer has its own seed
    sides = ModelSwitch(
        parts, args, device=device, server=server, client=client, kinds=kinds, on_change=lambda former: parts.keep(former, args.profile)
    )
    kept.note = _change_of_models(kept.conversation.models, sides.models)
    kept.conversation.models = sides.models
    try:
        async with parts.waiting(args) if device is not None else nullcontext():
            await client.__aenter__()
        check_images(sides, has_images=any(file.image for file in files))
        if args.prompt is not None:
            return await answer_prompt(client, args, view, kept, sides=sides, files=files)
        if is_interactive(args):
            view.legend({name: _describe(args, name, kind) for name, kind in kinds.items()})
        return await converse(client, args, view, kept, saves_prompts=not args.no_save, sides=sides, files=files)
    finally:
        last = sides.client
        await sides.aclose()
        parts.keep(last, args.profile)


def _change_of_models(before: ChatModels | None, now: ChatModels | None) -> str:
    """Return a line that says that a conversation continues with other models, or "" if it doesn't."""
    if before is None or now is None or before == now:
        return ""
    return f"the models have changed: this conversation was with {before}, and goes on with {now}"


def _begin_profile(path: Path) -> Profile:
    from streamco.calibration.profile_store import begin_profile

    return begin_profile(path)


def _keep_profile(client: Client, former: Profile, path: Path) -> None:
    from streamco.calibration.profile_store import add_ratings, added_ratings
    from streamco.profiles import Profile

    learned = Profile.from_json(client.profile())
    names = (name for name in learned.__struct_fields__ if name != "ratings")
    changed = {name: value for name in names if (value := getattr(learned, name)) != getattr(former, name)}
    add_ratings(added_ratings(former.ratings, learned.ratings), path, changed)


def _mode(name: str, race: Race, verifier: VerifierSetting, drafter: Drafter, weights: Mapping[str, float | None]) -> Mode:
    if name == "race" and not weights:
        return race
    from streamco.client.modes.auto import Auto

    if name == "race":
        return Auto(race, **weights)
    from streamco.client.modes.speculation.mode import Speculate

    drafting = Speculate(verifier=verifier, drafter=drafter)
    return Auto(race, drafting, **weights) if name == "auto" else replace(drafting, otherwise=race)


def _describe(args: argparse.Namespace, name: str, kind: str) -> str:
    if name in (names := verifier_names(args)):
        return f"verifies the device's drafts, at {args.verifier[names.index(name)]}"
    if name == LOOKUP:
        return "drafts that were looked up in the prompt and the answer"
    if name == LOCAL:
        return "drafts of the device that were not verified"
    if kind == "server":
        return f"the model at {args.base_url}" if args.base_url else "the remote model"
    if args.split:
        return f"the ends of {Path(args.device).name} on this machine, its middle at {args.split[0]}"
    if is_at_url(args):
        return f"{args.device_model or 'the model'} at {args.device}"
    name = "the packaged one" if args.device in {None, PACKAGED} else Path(args.device).name
    return f"the model on this machine: {name}"


def make_device(args: argparse.Namespace) -> Endpoint | None:
    """Return the device endpoint that the options name, if any.

    Raises:
        ConfigError: the model file is missing, or there is neither a device nor a server.
    """
    if args.no_device:
        return None
    if is_at_url(args):
        from streamco.endpoints.local_server import LocalServerEndpoint

        return LocalServerEndpoint(args.device, args.device_model)
    path = device_path_of(args.device, has_server=args.server is not None)
    if path is None:
        return None
    from streamco.client.modes.speculation.verifier_binding import drafting_engine_options
    from streamco.endpoints.device import DeviceEndpoint
    from streamco.engines.base import EngineOptions

    engine = EngineOptions(threads=args.threads or default_threads())
    return DeviceEndpoint(
        path, options=engine if args.mode == "race" and args.verifier is None else drafting_engine_options(engine, budget_of(args))
    )


def make_split(args: argparse.Namespace) -> SplitEndpoint:
    """Return the split model that the options name."""
    from streamco.endpoints.split.endpoint import SplitEndpoint
    from streamco.engines.base import EngineOptions

    token = api_key_of(args.api_key_env)
    return SplitEndpoint(args.device, args.split, token=token, options=EngineOptions(threads=args.threads or default_threads()))


def make_verifier(args: argparse.Namespace) -> Verifier | None:
    """Return the verifier that the options name, or None if they name none: then the server verifies, or nothing does.

    Raises:
        ConfigError: the URL is invalid, or there is no device to draft.
    """
    if args.verifier is None:
        return None
    if args.no_device:
        raise ConfigError("--verifier: expected a device that drafts, got --no-device")
    from streamco.endpoints.verifiers.pool import VerifierPool
    from streamco.endpoints.verifiers.streamco import VerifierEndpoint
    from streamco.policies.serving.routing import ShortestQueue

    token = api_key_of(args.api_key_env)
    verifiers = [
        VerifierEndpoint(url, token=token, name=name, prices=args.prices)
        for url, name in zip(args.verifier, verifier_names(args), strict=True)
    ]
    return verifiers[0] if len(verifiers) == 1 else VerifierPool(verifiers, routing=args.routing or ShortestQueue.name)


def verifier_names(args: argparse.Namespace) -> list[str]:
    """Return the names of the verifiers that the options name."""
    count = len(args.verifier or ())
    return [VERIFIER] * count if count < 2 else [f"{VERIFIER} {number}" for number in range(1, count + 1)]


def default_threads() -> int:
    """Return half the number of cores, because an engine whose threads wait for each other on busy cores falls to a few tokens a second."""
    from streamco.engines.threads import available_cores

    return max(1, available_cores() // 2)


def make_server(args: argparse.Namespace) -> Endpoint | None:
    """Return the server endpoint that the options name, if any.

    Raises:
        ConfigError: the key's variable isn't set, or there is neither a device nor a server.
    """
    if args.server is None:
        if args.no_device:
            raise ConfigError("--no-device: only valid with --server MODEL")
        return None
    from streamco.endpoints.openai import OpenAIEndpoint

    return OpenAIEndpoint(args.server, base_url=args.base_url, api_key=api_key_of(args.api_key_env), name=args.server, prices=args.prices)
