"""The proxy's configuration: one TOML file, checked key by key, which can also be written out with all its defaults.

It never contains the endpoints' API keys, only the names of the environment variables that hold them.
"""

from __future__ import annotations

import re
import tomllib
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct, field

from streamco.client.modes.race.dispatcher import DispatchOptions
from streamco.client.modes.race.migration import MigrationOptions
from streamco.client.modes.race.mode import Race
from streamco.client.modes.race.quality_gate import QualityGate
from streamco.client.modes.speculation.mode import Speculate
from streamco.client.modes.speculation.options import SpeculationOptions
from streamco.config import Timeouts
from streamco.endpoints.base import Continuation, TokenPrices, check_prices
from streamco.endpoints.known_servers.declared import CapabilityChanges
from streamco.endpoints.model_files import PACKAGED, is_hub_name
from streamco.endpoints.verifiers.base import Verifier
from streamco.engines.base import ReasoningFormat
from streamco.errors import ConfigError
from streamco.events import PreCopy
from streamco.policies.cost import RATE_SERVER_CONSTRAINED
from streamco.policies.ways import Weights
from streamco.proxy.tasks import check_patterns
from streamco.server.http.options import ListenOptions
from streamco.wire.tensors import StateFormat

__all__ = [
    "CallersSection",
    "CapabilityTable",
    "DeviceSection",
    "DispatchSection",
    "MODEL",
    "PriceTable",
    "ProxyConfig",
    "ProxyOptions",
    "ProxySection",
    "ServerSection",
    "SpeculateSection",
    "SplitSection",
    "TasksSection",
    "format_config",
    "load_config",
    "parse_config",
]

MODEL = "streamco"  # the model name that means the fastest endpoint


UnknownModels = Literal["pass", "refuse"]


class ProxyOptions(ListenOptions, frozen=True, kw_only=True):
    """Settings of the proxy: port, key, limits, and the model names it knows."""

    models: tuple[str, ...] = ()  # names of the client's own models; a request for one of them goes to the fastest endpoint
    unknown_models: UnknownModels = "pass"  # "pass": other names go to the servers, and a header says if the device answers; "refuse": 404
    raw_prompts: bool = False  # /v1/completions: pass the prompt as it is, or (False) as a user's message, which suits every endpoint
    max_body_bytes: int = 16 << 20  # images travel inside requests
    page: bool = False  # serve a chat for browsers at "/"; then POST requests of other origins are refused, unless ``cors`` names them
    task_patterns: tuple[str, ...] = ()  # regular expressions for beginnings of messages that the device answers alone; see ``TaskRules``
    takes_tasks: bool = False  # callers may mark such a request with the header ``x-streamco-task``
    callers: str | Path | None = None  # file with the callers' keys and budgets, instead of ``api_key``; unknown models are then refused
    answer_tokens: int = 4096  # longest server answer if a caller with a budget sends a request without a limit

    def __post_init__(self) -> None:
        super().__post_init__()
        check_patterns(self.task_patterns)
        if self.callers is not None and self.api_key is not None:
            raise ConfigError("callers: can't be combined with an api key, because each caller has a key")
        if self.answer_tokens < 1:
            raise ConfigError(f"answer_tokens: expected at least 1, got {self.answer_tokens}")

    @property
    def has_key(self) -> bool:
        """True if clients need a key."""
        return self.callers is not None or bool(self.keys)

    @property
    def refuses_unknown_models(self) -> bool:
        """True if a request for an unconfigured model gets 404. With callers it always does, because such a model's price isn't known."""
        return self.callers is not None or self.unknown_models == "refuse"


KEY_VARIABLE = "STREAMCO_PROXY_KEY"

T = TypeVar("T")


class ProxySection(Struct, frozen=True, kw_only=True):
    """Section ``[proxy]``: port, key and limits; see ``ListenOptions``."""

    host: str = "127.0.0.1"
    port: int = 8080
    api_key_env: str = KEY_VARIABLE  # no key if it isn't set in the environment
    allow_open: bool = False
    cors: tuple[str, ...] = ()
    page: bool = False  # serve a chat for browsers at "/"
    unknown_models: UnknownModels = "pass"
    max_body_bytes: int = 16 << 20
    max_streams: int = 64
    keepalive: float = 10.0
    idle_timeout: float = 75.0
    reader_timeout: float = 60.0
    metrics: bool = True  # answer GET /metrics
    otel: bool = False  # export spans by OTLP to OTEL_EXPORTER_OTLP_ENDPOINT


class CapabilityTable(Struct, frozen=True, kw_only=True):
    """Table ``capabilities`` of an endpoint: fields of ``Capabilities``. Fields that aren't set keep the values known for the server."""

    vocabulary: str | None = None
    takes_token_ids: bool | None = None
    continuation: Continuation | None = None
    pre_copy: PreCopy | None = None
    tools: bool | None = None
    json_schema: bool | None = None
    images: bool | None = None
    choices: bool | None = None
    context_tokens: Annotated[int, Meta(ge=1)] | None = None

    def changes(self) -> CapabilityChanges:
        """Return the fields that are set."""
        return msgspec.convert(dict(_settings(self)), CapabilityChanges)


class DeviceSection(Struct, frozen=True, kw_only=True):
    """Section ``[device]``: the model on this machine, in this process or at ``base_url`` (see ``LocalServerEndpoint``)."""

    model: str | None = None  # a GGUF file, "packaged", or hf:org/repo:QUANT; with base_url the model's name there (None if it has one)
    base_url: str | None = None  # URL of a server that runs on this machine
    api_key_env: str | None = None  # variable with that server's key, or None for no key
    name: str = "device"
    threads: int | None = None  # None for a fair share of the cores
    context: int | None = None  # tokens of a sequence, prompt and answer; None for 2048, or with base_url for what the server reports
    sequences: int = 4  # answers decoded together
    capabilities: CapabilityTable | None = None  # with base_url; None for what is known about such servers
    reasoning_format: ReasoningFormat = "auto"  # see ``EngineOptions``
    drafts: int = 2  # number of answers that can be drafted at a time with full branches, if [speculate] asks for drafts


_MILLION = 1_000_000


class PriceTable(Struct, frozen=True, kw_only=True):
    """Table ``prices`` of a server, in US dollars per million tokens."""

    prompt: float | None = None
    completion: float | None = None
    cached_prompt: float | None = None

    def __post_init__(self) -> None:
        check_prices(self, tokens=_MILLION)

    @classmethod
    def per_million(cls, prices: TokenPrices) -> PriceTable:
        """Return the table for prices that are given per token."""
        return cls(**{name: round(price * _MILLION, 9) for name, price in _settings(prices)})

    def per_token(self) -> TokenPrices:
        """Return the prices per token."""
        return TokenPrices(**{name: price / _MILLION for name, price in _settings(self)})


class ServerSection(Struct, frozen=True, kw_only=True):
    """Section ``[[server]]``: a remote model. The first one takes part in the race, and the others are its fallbacks."""

    model: str
    base_url: str | None = None
    api_key_env: str | None = None  # None for the provider's variable
    name: str | None = None
    provider: str | None = None
    api: Literal["chat", "completions", "responses", "messages"] = "chat"
    prices: PriceTable | None = None
    timeouts: Timeouts = Timeouts()
    capabilities: CapabilityTable | None = None  # None for the provider's usual ones
    probe: bool | None = None  # ask the server what it is: at the start (True), never (False), or in the background at the first answer


def _shared(section: Struct, kind: type[Struct]) -> dict[str, Any]:
    """Return the settings of a section that this options class of the SDK also has."""
    return {name: getattr(section, name) for name in kind.__struct_fields__}


class QualityTable(QualityGate, frozen=True, kw_only=True):
    """Table ``[dispatch.quality]``: settings of ``QualityGate``."""

    NOT_IN_FILES: ClassVar[frozenset[str]] = frozenset({"score", "judge"})

    score: None = None
    judge: None = None


class DispatchSection(DispatchOptions, frozen=True, kw_only=True):
    """Section ``[dispatch]``: settings of ``Race``, and related ones of ``Client``."""

    NOT_IN_FILES: ClassVar[frozenset[str]] = frozenset({"gate"})

    budget: float = 0.3
    policy: str = "auto"  # type: ignore[assignment]  # its check names the policies
    pace: float | Literal["reading", "listening", "smooth"] | None = None
    on_failure: Literal["migrate", "restart", "raise"] | None = None  # after a failure in mid-answer; None to migrate (raise with tools)
    gate: None = None
    quality: QualityTable | Literal["gate"] | None = None
    exchange_rate: float = RATE_SERVER_CONSTRAINED  # only a number, because a function needs a program
    check_access: bool = True  # ask a server that always loses for its list of models once, to detect a wrong key
    seed: int | None = None
    profile: str | None = None  # file for what was learned, read at the start and written at the end

    def race(self, migration: MigrationOptions) -> Race:
        """Return the race that this section describes. Migration options with default values count as not given."""
        given = None if migration == MigrationOptions() else migration
        return Race(**_shared(self, DispatchOptions), migration=given, check_access=self.check_access)


class SpeculateSection(SpeculationOptions, frozen=True, kw_only=True):
    """Section ``[speculate]``: settings of ``Speculate``, and where its verifiers are."""

    NOT_IN_FILES: ClassVar[frozenset[str]] = frozenset({"tuning"})

    mode: Literal["race", "speculate", "auto"] = "race"
    verifier: str | tuple[str, ...] | None = None  # one URL, or several with the same model; None for the first [[server]]
    routing: str | None = None  # how answers are spread over several; None for join-shortest-queue; see ``VerifierPool``
    token_env: str | None = None  # variable with the token for all of them, or None for no token
    is_plain: bool = False  # allow ws:// to another machine
    budget: float = 1.0  # share of the drafts that is verified
    window: int | Literal["dynamic", "adaptive", "predicted", "confident"] | None = None  # tokens of a draft; None to follow the budget
    joules_per_second_saved: float | None = None  # only a number, because a function needs a program

    def drafting(self, verifier: Verifier | None) -> Speculate:
        """Return the drafting mode that this section describes."""
        return Speculate(**_shared(self, SpeculationOptions), verifier=verifier)


class SplitSection(Struct, frozen=True, kw_only=True):
    """Section ``[split]``: a model with its first and last layers on this machine and its middle on servers; see ``SplitEndpoint``."""

    parts: str  # common beginning of the device's files: parts/NAME for parts/NAME.input.gguf
    servers: tuple[str, ...]  # URLs; if one is lost, the next one takes over
    name: str = "split"
    token_env: str | None = None  # variable with the servers' token, or None for no token
    states: StateFormat | Literal["auto"] = "auto"
    patience: float = 5.0  # seconds that all servers may be unreachable
    max_wait: float = 45.0  # seconds that an answer waits for servers that are busy with other answers
    is_plain: bool = False  # allow ws:// to another machine
    threads: int | None = None  # None for a fair share of the cores
    context: int = 2048  # tokens of a sequence, prompt and answer
    sequences: int = 4  # answers at a time


class TasksSection(Struct, frozen=True, kw_only=True):
    """Section ``[tasks]``: a front end's requests for titles, tags and the like, which the device answers alone; see ``TaskRules``."""

    header: bool = True  # callers may mark such a request with the header ``x-streamco-task``
    open_webui: bool = False  # recognise Open WebUI's requests
    patterns: tuple[str, ...] = ()  # regular expressions for other beginnings of messages


class CallersSection(Struct, frozen=True, kw_only=True):
    """Section ``[callers]``: several keys, each with a budget, a rate and allowed sides; see ``streamco callers``."""

    file: str  # the SQLite file that ``streamco callers add`` creates
    answer_tokens: int = 4096  # longest server answer if a caller with a budget sends a request without a limit


class ProxyConfig(Struct, frozen=True, kw_only=True):
    """The whole configuration file."""

    proxy: ProxySection = ProxySection()
    device: DeviceSection | None = None
    server: tuple[ServerSection, ...] = ()
    dispatch: DispatchSection = field(default_factory=DispatchSection)
    migration: MigrationOptions = MigrationOptions()
    speculate: SpeculateSection = SpeculateSection()
    weights: Weights | None = None  # what a second, a dollar and a good answer are worth, which decides how each answer is made
    split: SplitSection | None = None
    tasks: TasksSection | None = None
    callers: CallersSection | None = None


def load_config(path: Path) -> ProxyConfig:
    """Read a configuration file. Paths in it are relative to its folder; ``~`` is the home folder.

    Raises:
        ConfigError: the file can't be read, isn't TOML, or has a wrong key or value, which the error names.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config: expected a file that can be read, got {error}") from error
    return parse_config(text, where=str(path), folder=path.parent)


def parse_config(text: str, *, where: str = "config", folder: Path | None = None) -> ProxyConfig:
    """Parse a configuration from TOML.

    Args:
        text: text of the file.
        where: name of the file in errors.
        folder: folder in which relative paths start, or None to leave them as they are.

    Raises:
        ConfigError: it isn't TOML, or has an unknown key or a value of a wrong type.
    """
    try:
        data = tomllib.loads(text)
    except RecursionError as error:
        raise ConfigError(f"{where}: expected TOML with fewer levels of nesting, got more") from error
    except ValueError as error:  # tomllib's error is one; a number with thousands of digits also raises it
        raise ConfigError(f"{where}: expected TOML, got {error}") from error
    _check_keys(data, ProxyConfig, "", where)
    try:
        config = msgspec.convert(data, ProxyConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {_explain(str(error))}") from error
    if config.device is not None and config.device.model is None and config.device.base_url is None:
        raise ConfigError(f'{where}: device.model: expected a value, got none: a GGUF file, "{PACKAGED}", or device.base_url instead')
    return config if folder is None else _resolve(config, folder)


def _check_keys(table: Mapping[str, Any], kind: type[Struct], path: str, where: str) -> None:
    """Refuse unknown keys at any depth. Values aren't quoted, because one may be a secret written instead of its variable's name."""
    hints = get_type_hints(kind)
    names = _names(kind)
    for name, value in table.items():
        if name not in names:
            known = ", ".join(names)
            raise ConfigError(f"{where}: {path}{name}: expected one of {known}, got a key that is unknown")
        inner = next(_structs_in(hints[name]), None)
        if inner is None:
            continue
        for index, each in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(each, dict):
                _check_keys(each, inner, f"{path}{name}{f'[{index}]' if isinstance(value, list) else ''}.", where)


def _structs_in(hint: Any) -> Iterator[type[Struct]]:
    if isinstance(hint, type) and issubclass(hint, Struct):
        yield hint
    elif get_origin(hint) in {tuple, Union, types.UnionType}:
        for part in get_args(hint):
            yield from _structs_in(part)


_OWN_NAMES = re.compile(r"^(race|speculate|migration|auto): ")  # prefixes of errors; these sections are called differently in files


def _explain(text: str) -> str:
    """Translate ``Expected `int`, got `str` - at `$.proxy.port``` into this package's order: where, expected, got."""
    reason, _, path = text.partition(" - at `$")
    path = path.removesuffix("`").removeprefix(".")
    if missing := re.search(r"missing required field `(\w+)`", reason):
        return f"{path + '.' if path else ''}{missing[1]}: expected a value, got none"
    reason = _OWN_NAMES.sub("", reason.replace("`", ""))
    return f"{path}: {reason[:1].lower()}{reason[1:]}"


def _resolve(config: ProxyConfig, folder: Path) -> ProxyConfig:
    device, dispatch, split, callers = config.device, config.dispatch, config.split, config.callers
    if device is not None and device.base_url is None and device.model is not None and not _is_name(device.model):
        device = msgspec.structs.replace(device, model=_absolute(device.model, folder))
    if dispatch.profile is not None:
        dispatch = msgspec.structs.replace(dispatch, profile=_absolute(dispatch.profile, folder))
    if split is not None:
        split = msgspec.structs.replace(split, parts=_absolute(split.parts, folder))
    if callers is not None:
        callers = msgspec.structs.replace(callers, file=_absolute(callers.file, folder))
    return msgspec.structs.replace(config, device=device, dispatch=dispatch, split=split, callers=callers)


def _is_name(model: str) -> bool:
    return model == PACKAGED or is_hub_name(model)


def _absolute(path: str, folder: Path) -> str:
    return str(folder / Path(path).expanduser())


def format_config(config: ProxyConfig) -> str:
    """Return the configuration as TOML that ``parse_config`` can read. It includes the defaults; values that aren't set are left out."""
    parts = [_table("[proxy]", config.proxy)]
    if config.device is not None:
        parts.append(_table("[device]", config.device))
    parts += [_table("[[server]]", server) for server in config.server]
    parts += [_table("[dispatch]", config.dispatch), _table("[migration]", config.migration), _table("[speculate]", config.speculate)]
    if config.weights is not None:
        parts.append(_table("[weights]", config.weights))
    if config.split is not None:
        parts.append(_table("[split]", config.split))
    if config.tasks is not None:
        parts.append(_table("[tasks]", config.tasks))
    if config.callers is not None:
        parts.append(_table("[callers]", config.callers))
    return "\n".join(parts)


def _table(title: str, section: Struct) -> str:
    return "".join([f"{title}\n", *(f"{name} = {_format(value)}\n" for name, value in _settings(section))])


def _settings(section: Struct) -> list[tuple[str, Any]]:
    return [(name, value) for name in _names(type(section)) if (value := getattr(section, name)) is not None]


def _names(kind: type[Struct]) -> list[str]:
    """Return the names of a section's settings that may appear in a file, inherited ones last."""
    kept_out: frozenset[str] = getattr(kind, "NOT_IN_FILES", frozenset())
    own = [name for name in kind.__annotations__ if name in kind.__struct_fields__]
    return [name for name in dict.fromkeys((*own, *kind.__struct_fields__)) if name not in kept_out]


def _format(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return _quote(value)
        case dict():
            return "{ " + ", ".join(f"{_quote(name)} = {_format(each)}" for name, each in value.items()) + " }"
        case tuple():
            return f"[{', '.join(map(_format, value))}]"
        case Struct():
            return "{ " + ", ".join(f"{name} = {_format(each)}" for name, each in _settings(value)) + " }"
    raise AssertionError(f"a configuration holds texts, numbers, lists and tables, got {type(value).__name__}")


def _quote(text: str) -> str:
    """Return the text as a TOML basic string. It has JSON's escapes, and one for DEL, which only TOML needs."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")
