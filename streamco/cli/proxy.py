"""``streamco proxy``: a local OpenAI-compatible server in front of a device model and remote ones."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamco.cli.options import DRAFTER_HELP, DRAFTERS, add_client_key_arguments, api_key_of, option, prices, whole_number
from streamco.cli.runtime import run_async
from streamco.cli.serving import check_descriptor, curl_line, serve_until_stopped
from streamco.cli.ui.control_characters import escaped, print_plain
from streamco.cli.ui.slash_commands import MODES, parse_budget, parse_pace_text, parse_policy
from streamco.errors import ConfigError

if TYPE_CHECKING:
    from streamco.proxy.config import DeviceSection, ProxyConfig, ProxyOptions, ServerSection, SplitSection

__all__ = ["add_arguments", "run"]

DESCRIPTION = """\
Programs that speak OpenAI's API get their answers from a small model on this machine and a remote one together, under another base URL.
The side with the first word answers, and the other is cancelled. Options override the file; docs/proxy.md describes it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``streamco proxy``."""
    parser.description = DESCRIPTION
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="TOML file with [proxy], [device], [[server]], [dispatch], [migration], [speculate], [split], [tasks], [callers]",
    )
    parser.add_argument("--print-config", action="store_true", help="print the effective configuration as TOML and leave")
    endpoints = parser.add_argument_group("endpoints")
    endpoints.add_argument(
        "--device",
        metavar="PATH",
        help="GGUF file or hf:org/repo:QUANT of the model on this machine, 'packaged', or URL of a server that runs there, such as "
        "Ollama's http://127.0.0.1:11434",
    )
    endpoints.add_argument("--device-model", metavar="NAME", help="name of the model at --device URL (the only one there)")
    endpoints.add_argument("--no-device", action="store_true", help="no device, whatever the file says")
    endpoints.add_argument("--threads", type=option(whole_number), metavar="N", help="threads of the device model")
    endpoints.add_argument("--server", metavar="MODEL", help="name of a remote model; takes the place of the file's servers")
    endpoints.add_argument("--base-url", metavar="URL", help="base URL of the server named by --server (OpenAI's own)")
    endpoints.add_argument("--api-key-env", metavar="VAR", help="environment variable with that server's key (OPENAI_API_KEY)")
    endpoints.add_argument(
        "--prices",
        type=option(prices),
        metavar="PROMPT/ANSWER",
        help="that server's prices in US dollars per million tokens, such as 0.15/0.6 (known for common models)",
    )
    endpoints.add_argument(
        "--split",
        action="append",
        metavar="URL",
        help="URL of a streamco serve --middle, and --device parts/NAME the other parts; again for a server that goes on if it is lost",
    )
    how = parser.add_argument_group("dispatch")
    how.add_argument(
        "--budget",
        default=argparse.SUPPRESS,
        type=option(parse_budget),
        metavar="SHARE",
        help="share of prompt tokens the constrained side may process",
    )
    how.add_argument("--policy", default=argparse.SUPPRESS, type=option(parse_policy), metavar="NAME", help="which side starts when")
    how.add_argument(
        "--pace",
        default=argparse.SUPPRESS,
        type=option(parse_pace_text),
        metavar="RATE",
        help="tokens per second, reading (4.8), listening (3.5), or smooth: as they come, but evenly",
    )
    how.add_argument(
        "--mode",
        default=argparse.SUPPRESS,
        choices=MODES,
        help="race; speculate: the device drafts, a server verifies; auto: the faster mode",
    )
    how.add_argument(
        "--verifier",
        default=argparse.SUPPRESS,
        action="append",
        metavar="URL",
        help="URL of a verifier (the first server); again for each of several",
    )
    how.add_argument(
        "--routing", default=argparse.SUPPRESS, metavar="HOW", help="how answers are spread over several verifiers (join-shortest-queue)"
    )
    how.add_argument("--drafter", default=argparse.SUPPRESS, choices=DRAFTERS, help=DRAFTER_HELP)
    how.add_argument("--profile", default=argparse.SUPPRESS, metavar="FILE", help="keeps what was learned from one run to the next")
    listen = parser.add_argument_group("listening")
    listen.add_argument("--host", default=argparse.SUPPRESS, help="address to listen on (127.0.0.1)")
    listen.add_argument("--port", default=argparse.SUPPRESS, type=int, help="0: any free one (8080)")
    add_client_key_arguments(listen, "STREAMCO_PROXY_KEY")
    listen.add_argument(
        "--callers", metavar="FILE", help="several keys with budgets and rates, in the place of one: the file of streamco callers"
    )
    listen.add_argument("--no-auth", action="store_true", help="serve other machines without a key")
    listen.add_argument(
        "--cors",
        default=argparse.SUPPRESS,
        action="append",
        metavar="ORIGIN",
        help="web page that may call from a browser; may be given again",
    )
    listen.add_argument("--max-streams", default=argparse.SUPPRESS, type=option(whole_number), metavar="N", help="answers at once (64)")
    listen.add_argument("--keepalive", default=argparse.SUPPRESS, type=float, metavar="S", help="silence before a comment (10)")
    listen.add_argument("--page", action="store_true", help="serve a chat for browsers at /")
    listen.add_argument("--no-metrics", action="store_true", help="no GET /metrics")
    listen.add_argument("--otel", action="store_true", help="export spans by OTLP to $OTEL_EXPORTER_OTLP_ENDPOINT; needs streamco[otel]")
    listen.add_argument("--ready-fd", type=int, metavar="FD", help="write the address to this file descriptor and close it, once ready")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM, or print the configuration. The exit code is 0, or 1 if the port is taken.

    Raises:
        StreamcoError: the proxy can't start.
    """
    from streamco.proxy.config import format_config

    config = effective_config(args)
    if args.print_config:
        print_plain(escaped(format_config(config)), end="")
        return 0
    check_descriptor(args.ready_fd)
    return run_async(lambda: _proxy(args, config))


async def _proxy(args: argparse.Namespace, config: ProxyConfig) -> int:
    from streamco.cli.spans import exporting
    from streamco.proxy.app import serving
    from streamco.proxy.from_config import build_client, build_options, keep_profile

    api_key_of(args.client_key_env, "--client-key-env")  # if a variable was given, it must be set
    options = build_options(config)
    options.check_exposure()
    async with exporting(is_on=config.proxy.otel) as observers, build_client(config) as client:
        for each in observers:
            client.observers.add(each)
        try:
            await serve_until_stopped(serving(client, options), args.ready_fd, hints=lambda base_url: [_hint(config, options, base_url)])
        except OSError as error:
            print_plain(f"streamco proxy: {options.host}:{options.port}: {error.strerror or error}", sys.stderr)
            return 1
        try:
            keep_profile(client, config)
        except ConfigError as error:  # the settings were right, and it was stopped properly
            print_plain(f"streamco proxy: what was learned is lost: {error}", sys.stderr)
    return 0


def _hint(config: ProxyConfig, options: ProxyOptions, base_url: str) -> str:
    """Return a command to try the proxy with."""
    key = "KEY" if config.callers is not None else f"${config.proxy.api_key_env}" if options.has_key else ""
    return f"try: {curl_line(base_url, model='streamco', key=key)}"


def effective_config(args: argparse.Namespace) -> ProxyConfig:
    """Return the file's settings, overridden by the options, or only the packaged model if there are neither.

    Raises:
        ConfigError: the file is invalid, or options contradict each other.
    """
    from msgspec.structs import replace

    from streamco.proxy.config import CallersSection, ProxyConfig, load_config

    config = ProxyConfig() if args.config is None else load_config(args.config)
    device, servers, split = config.device, _server_sections(args, config), _split_section(args, config)
    if split is not None:
        split = replace(split, threads=args.threads or split.threads)
    else:
        device = _device_section(args, device, is_alone=not servers)
    proxy = _given(args, "host", "port", "max_streams", "keepalive")
    if "cors" in args:
        proxy["cors"] = tuple(args.cors)
    if args.client_key_env is not None:
        proxy["api_key_env"] = args.client_key_env
    if args.no_auth:
        proxy["allow_open"] = True
    if args.page:
        proxy["page"] = True
    if args.no_metrics:
        proxy["metrics"] = False
    if args.otel:
        proxy["otel"] = True
    callers = config.callers
    if args.callers is not None:
        callers = CallersSection(file=args.callers) if callers is None else replace(callers, file=args.callers)
    dispatch = _given(args, "budget", "policy", "pace", "profile")
    speculate = _given(args, "mode", "verifier", "routing", "drafter")
    if "verifier" in args:
        speculate["verifier"] = args.verifier[0] if len(args.verifier) == 1 else tuple(args.verifier)
    return replace(
        config,
        proxy=replace(config.proxy, **proxy),
        device=device,
        server=servers,
        split=split,
        dispatch=replace(config.dispatch, **dispatch),
        speculate=replace(config.speculate, **speculate),
        callers=callers,
    )


def _server_sections(args: argparse.Namespace, config: ProxyConfig) -> tuple[ServerSection, ...]:
    """Return the servers: only the one given as an option, or else the file's.

    Raises:
        ConfigError: an option that needs a server is given without one.
    """
    from streamco.proxy.config import PriceTable, ServerSection

    if args.server is not None:
        table = None if args.prices is None else PriceTable.per_million(args.prices)
        return (ServerSection(model=args.server, base_url=args.base_url, api_key_env=args.api_key_env, prices=table),)
    for name in ("base_url", "api_key_env", "prices"):
        if getattr(args, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')}: only valid with --server MODEL")
    return config.server


def _device_section(args: argparse.Namespace, section: DeviceSection | None, *, is_alone: bool) -> DeviceSection | None:
    """Return the device's section, changed by the options, or None if there is no device.

    Args:
        args: the options.
        section: the file's section, if it has one.
        is_alone: True if there is no server, so that the packaged model answers if no device is given.

    Raises:
        ConfigError: the options contradict each other or the file.
    """
    from msgspec.structs import replace

    from streamco.endpoints.address import is_url
    from streamco.endpoints.model_files import PACKAGED
    from streamco.proxy.config import DeviceSection

    if args.no_device:
        section = None
    elif args.device is not None and is_url(args.device):
        section = _local_server(args.device, section or DeviceSection())
    elif args.device is not None or (section is None and is_alone):
        section = replace(section or DeviceSection(), model=args.device or PACKAGED, base_url=None, api_key_env=None, capabilities=None)
    if args.device_model is not None:
        if section is None or section.base_url is None:
            raise ConfigError("--device-model: only valid with --device URL, or with device.base_url in the file")
        section = replace(section, model=args.device_model)
    return section if section is None or args.threads is None else replace(section, threads=args.threads)


def _local_server(url: str, section: DeviceSection) -> DeviceSection:
    """Return the section for a device at a URL, with the name and context of the file's device.

    If the file has the same URL, its model, key and capabilities apply, too.

    Raises:
        ConfigError: the file has a key for another URL.
    """
    from streamco.proxy.config import DeviceSection

    if section.base_url != url and section.api_key_env is not None:
        raise ConfigError(f"--device: expected the file's device.base_url, which device.api_key_env is for, got {url}")
    return DeviceSection(
        base_url=url,
        model=section.model if section.base_url == url else None,
        api_key_env=section.api_key_env,
        name=section.name,
        context=section.context,
        capabilities=section.capabilities if section.base_url == url else None,
    )


def _split_section(args: argparse.Namespace, config: ProxyConfig) -> SplitSection | None:
    """Return the section of a split model, changed by the options, or None if the model isn't split.

    Raises:
        ConfigError: ``--split`` is given without the parts, or with ``--no-device``.
    """
    from msgspec.structs import replace

    from streamco.proxy.config import SplitSection

    section = config.split
    if args.split is None and section is None:
        return None
    if args.no_device:
        raise ConfigError("--no-device: can't be combined with a split model, whose ends run on the device")
    parts = args.device or (None if section is None else section.parts)
    if parts is None:
        raise ConfigError("--split: only valid with --device parts/NAME")
    servers = tuple(args.split) if args.split is not None else () if section is None else section.servers
    return SplitSection(parts=parts, servers=servers) if section is None else replace(section, parts=parts, servers=servers)


def _given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the options with these names that were given on the command line; ``--pace off`` counts as given."""
    return {name: getattr(args, name) for name in names if name in args}
