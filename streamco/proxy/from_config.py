"""Builds the client, its endpoints and the proxy's options from a configuration."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import asdict, replace

from streamco.calibration.profile_store import save_profile
from streamco.client.client import Client
from streamco.client.modes.auto import Auto
from streamco.client.modes.base import Mode
from streamco.client.modes.speculation.verifier_binding import drafting_engine_options
from streamco.client.modes.split.mode import Split
from streamco.endpoints.address import read_key
from streamco.endpoints.base import Endpoint
from streamco.endpoints.known_servers.anthropic import AnthropicEndpoint
from streamco.endpoints.local_server import LocalServerEndpoint
from streamco.endpoints.model_files import PACKAGED, path_of
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.verifiers.base import Verifier
from streamco.errors import ConfigError, EndpointError
from streamco.policies.serving.routing import ShortestQueue
from streamco.profiles import Profile
from streamco.proxy.config import (
    DeviceSection,
    ProxyConfig,
    ProxyOptions,
    ServerSection,
    SpeculateSection,
    SplitSection,
)
from streamco.proxy.tasks import OPEN_WEBUI

if TYPE_CHECKING:
    from streamco.endpoints.device import DeviceEndpoint

__all__ = ["ProbedEndpoint", "build_client", "build_options", "keep_profile"]

_log = logging.getLogger("streamco.proxy")

_CONTEXT = 2048  # tokens of a sequence on the device


class ProbedEndpoint(OpenAIEndpoint):
    """An endpoint that asks its server for its dialect, capabilities and context, or keeps the configured ones if there is no answer."""

    async def start(self) -> None:
        """Start, and probe the server, waiting for its answers no longer than the connect limit. See ``OpenAIEndpoint.start``."""
        await super().start()
        try:
            info = await self.probe()
        except EndpointError as error:
            _log.warning("server not probed: %s", error)
        else:
            _log.info("%s is %s, context %s", self.name, info.kind, info.context_tokens or "not known")


def build_client(config: ProxyConfig, environ: Mapping[str, str] = os.environ) -> Client:
    """Return the client that a configuration describes, not yet started.

    Raises:
        ConfigError: there is no endpoint, a file or key is missing, a setting is out of range, or settings contradict each other.
        EngineError: the packaged model isn't installed.
    """
    if config.split is not None:
        return _build_split_client(config, config.split, environ)
    if config.speculate.mode == "race" and config.speculate.verifier is not None:
        raise ConfigError('speculate.verifier: only valid with mode = "speculate" or "auto", got race, in which nothing is verified')
    device = None if config.device is None else _build_device(config.device, config.speculate, environ)
    tokenizer = None if isinstance(device, LocalServerEndpoint) else device
    servers = [_build_server(section, index, environ, tokenizer) for index, section in enumerate(config.server)]
    if device is None and not servers:
        raise ConfigError("config: expected a [device] section, a [[server]] section or both, got neither")
    dispatch = config.dispatch
    profile = None if dispatch.profile is None else Path(dispatch.profile)
    return Client(
        device,
        servers or None,
        budget=dispatch.budget,
        mode=_mode(config, environ),
        pace=dispatch.pace,
        profile=profile if profile is not None and profile.exists() else None,
        on_failure=dispatch.on_failure,
        seed=dispatch.seed,
    )


def _mode(config: ProxyConfig, environ: Mapping[str, str]) -> Mode:
    """Return the mode that a configuration describes.

    Raises:
        ConfigError: weights are set together with a mode that leaves no choice.
    """
    speculate = config.speculate
    race = config.dispatch.race(config.migration)
    verifier = _build_verifier(speculate, environ)
    if config.weights is not None:
        if speculate.mode == "speculate":
            raise ConfigError('speculate.mode: expected "race" or "auto" with [weights], which choose the mode, got "speculate"')
        modes = (race,) if speculate.mode == "race" else (race, speculate.drafting(verifier))
        return Auto(*modes, **asdict(config.weights))
    if speculate.mode == "race":
        return race
    drafting = speculate.drafting(verifier)
    return Auto(race, drafting) if speculate.mode == "auto" else replace(drafting, otherwise=race)


def _build_split_client(config: ProxyConfig, section: SplitSection, environ: Mapping[str, str]) -> Client:
    """Return the client of a split model.

    Raises:
        ConfigError: another section or setting has no effect with it, a part is missing, or no server is given.
    """
    from streamco.endpoints.split.endpoint import SplitEndpoint
    from streamco.engines.base import EngineOptions
    from streamco.engines.split.engine import device_parts

    usual = ProxyConfig()
    sections = {name: getattr(config, name) for name in ("device", "server", "migration", "speculate", "weights")}
    for name, value in sections.items():
        if value != getattr(usual, name):
            raise ConfigError(f"{name}: can't be combined with [split], in which one model makes the whole answer")
    for name, value in asdict(config.dispatch).items():
        if name != "pace" and value != getattr(usual.dispatch, name):
            raise ConfigError(f"dispatch.{name}: can't be combined with [split], in which one model makes the whole answer, got {value!r}")
    device_parts(section.parts)
    endpoint = SplitEndpoint(
        section.parts,
        section.servers,
        token=None if section.token_env is None else read_key(section.token_env, setting="split.token_env", environ=environ),
        name=section.name,
        options=EngineOptions(context_tokens=section.context, max_sequences=section.sequences, threads=section.threads),
        states=section.states,
        patience=section.patience,
        max_wait=section.max_wait,
        is_plain=section.is_plain,
    )
    return Client(mode=Split(endpoint), pace=config.dispatch.pace)


def build_options(config: ProxyConfig, api_key: str | None = None, environ: Mapping[str, str] = os.environ) -> ProxyOptions:
    """Return the options that a configuration describes.

    Args:
        config: the configuration.
        api_key: the key, which takes precedence over a key in the environment.
        environ: environment in which ``api_key_env`` is looked up; there is no key if it isn't set there.

    Raises:
        ConfigError: a setting is out of range, [tasks] is given without [device], or [callers] with [split] or with a key in ``environ``.
    """
    section = config.proxy
    given = environ.get(section.api_key_env) or None
    names = (name for server in config.server for name in (server.model, server.name) if name)
    tasks = config.tasks
    patterns = () if tasks is None else (*((OPEN_WEBUI,) if tasks.open_webui else ()), *tasks.patterns)
    if tasks is not None and config.device is None:
        raise ConfigError("tasks: only valid with a [device], which answers them alone")
    callers = config.callers
    if callers is not None and config.split is not None:
        raise ConfigError("callers: can't be combined with [split], because a split model's work has no price")
    if callers is not None and given is not None and api_key is None:
        raise ConfigError(f"callers: can't be combined with an api key, because each caller has a key, got one in {section.api_key_env}")
    listening = {name: value for name, value in asdict(section).items() if name not in {"api_key_env", "otel"}}
    return ProxyOptions(
        **listening,
        api_key=given if api_key is None else api_key,
        models=tuple(dict.fromkeys(names)),
        raw_prompts=all(server.api == "completions" for server in config.server),
        task_patterns=patterns,
        takes_tasks=tasks is not None and tasks.header,
        callers=None if callers is None else callers.file,
        answer_tokens=ProxyOptions().answer_tokens if callers is None else callers.answer_tokens,
    )


def keep_profile(client: Client, config: ProxyConfig) -> None:
    """Write what the client learned to the profile file that the configuration names, if any.

    Raises:
        ConfigError: the file can't be written.
    """
    if config.dispatch.profile is not None:
        save_profile(Profile.from_json(client.profile()), config.dispatch.profile)


def _build_device(section: DeviceSection, speculate: SpeculateSection, environ: Mapping[str, str]) -> DeviceEndpoint | LocalServerEndpoint:
    if section.base_url is not None:
        return _build_local_server(section, section.base_url, speculate, environ)
    if section.model is None:
        raise ConfigError(f'device.model: expected a GGUF file or "{PACKAGED}", or device.base_url instead, got none')
    for name in ("api_key_env", "capabilities"):
        if getattr(section, name) is not None:
            raise ConfigError(f"device.{name}: only valid with device.base_url")
    from streamco.endpoints.device import DeviceEndpoint
    from streamco.engines.base import EngineOptions

    path = path_of(section.model)
    if not path.is_file():
        parts = " (but parts of a split model: these need [split] or --split URL)" if Path(f"{path}.input.gguf").is_file() else ""
        raise ConfigError(f"device.model: expected a GGUF file, got nothing at {path}{parts}")
    options = EngineOptions(
        context_tokens=_CONTEXT if section.context is None else section.context,
        max_sequences=section.sequences,
        threads=section.threads,
        reasoning_format=section.reasoning_format,
    )
    if speculate.mode != "race" and not speculate.is_lookup:
        options = drafting_engine_options(options, speculate.budget, section.drafts * (2 + speculate.max_branches))
    return DeviceEndpoint(path, name=section.name, options=options)


def _build_local_server(section: DeviceSection, url: str, speculate: SpeculateSection, environ: Mapping[str, str]) -> LocalServerEndpoint:
    """Return the device endpoint for a local server at a URL.

    Raises:
        ConfigError: another setting has no effect with a URL, or the key is missing.
    """
    usual = DeviceSection()
    for name in ("threads", "sequences", "reasoning_format", "drafts"):
        if getattr(section, name) != getattr(usual, name):
            raise ConfigError(f"device.{name}: can't be combined with device.base_url, where the server decides")
    if speculate.mode != "race" and not speculate.is_lookup:
        raise ConfigError(
            'speculate.mode: expected "race" with device.base_url, or drafter = "lookup" as well, because only a model in this process '
            f"drafts, got {speculate.mode!r}"
        )
    return LocalServerEndpoint(
        url,
        section.model,
        name=section.name,
        api_key=None if section.api_key_env is None else read_key(section.api_key_env, setting="device.api_key_env", environ=environ),
        context_tokens=section.context,
        capabilities=None if section.capabilities is None else section.capabilities.changes(),
    )


def _build_server(section: ServerSection, index: int, environ: Mapping[str, str], device: DeviceEndpoint | None) -> Endpoint:
    where = f"server[{index}].api_key_env"
    capabilities = None if section.capabilities is None else section.capabilities.changes()
    if section.api == "messages":
        for field in ("provider", "probe"):
            if getattr(section, field):
                raise ConfigError(f'server[{index}].{field}: can\'t be combined with api = "messages"')
        return AnthropicEndpoint(
            section.model,
            base_url=section.base_url,
            api_key=None if section.api_key_env is None else read_key(section.api_key_env, setting=where, environ=environ),
            name=section.name,
            timeouts=section.timeouts,
            prices=None if section.prices is None else section.prices.per_token(),
            capabilities=capabilities,
        )
    kind = ProbedEndpoint if section.probe else OpenAIEndpoint
    return kind(
        section.model,
        base_url=section.base_url,
        api_key=None if section.api_key_env is None else read_key(section.api_key_env, setting=where, environ=environ),
        name=section.name,
        provider=section.provider,
        api=section.api,
        timeouts=section.timeouts,
        prices=None if section.prices is None else section.prices.per_token(),
        capabilities=capabilities,
        tokenizer=device if section.probe else None,
        probe=section.probe is not False,
    )


def _build_verifier(section: SpeculateSection, environ: Mapping[str, str]) -> Verifier | None:
    if section.verifier is None:
        _refuse_routing(section, got="none")
        return None
    from streamco.endpoints.verifiers.pool import VerifierPool
    from streamco.endpoints.verifiers.streamco import VerifierEndpoint

    token = None if section.token_env is None else read_key(section.token_env, setting="speculate.token_env", environ=environ)
    urls = (section.verifier,) if isinstance(section.verifier, str) else section.verifier
    verifiers = [VerifierEndpoint(url, token=token, is_plain=section.is_plain) for url in urls]
    if len(verifiers) != 1:
        return VerifierPool(verifiers, routing=section.routing or ShortestQueue.name)
    _refuse_routing(section, got="one")
    return verifiers[0]


def _refuse_routing(section: SpeculateSection, *, got: str) -> None:
    if section.routing is not None:
        raise ConfigError(f"speculate.routing: only valid with several verifiers, got {section.routing!r} with {got}")
