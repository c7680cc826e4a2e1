"""From a configuration to a client and the proxy's options."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from msgspec.structs import replace

from streamco.calibration.profile_store import load_profile
from streamco.client.client import Client
from streamco.client.modes.auto import Auto
from streamco.client.modes.race.migration import MigrationOptions
from streamco.client.modes.race.mode import Race
from streamco.config import RetryPolicy, Timeouts
from streamco.endpoints.base import Capabilities
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.known_servers.anthropic import AnthropicEndpoint
from streamco.endpoints.local_server import LocalServerEndpoint
from streamco.endpoints.openai import OpenAIEndpoint
from streamco.endpoints.split.endpoint import SplitEndpoint
from streamco.endpoints.verifiers.pool import VerifierPool
from streamco.endpoints.verifiers.streamco import VerifierEndpoint
from streamco.errors import ConfigError, EndpointConnectError
from streamco.policies.ways import Weights
from streamco.proxy.app import serving
from streamco.proxy.config import DispatchSection, ProxyConfig, QualityTable, ServerSection, format_config, parse_config
from streamco.proxy.from_config import ProbedEndpoint, build_client, build_options, keep_profile
from streamco.server.app import serving as serving_engine
from streamco.testing.engine import FakeEngine
from tests.client.helpers import ask, server
from tests.support.modes import drafting

LOCAL = "http://127.0.0.1:9/v1"


def test_each_section_becomes_an_endpoint() -> None:
    client = build_client(
        parse_config(
            f"""
            [[server]]
            model = "large"
            base_url = "{LOCAL}"
            api_key_env = "MY_KEY"
            name = "cloud"
            prices = {{ prompt = 2, completion = 8 }}
            capabilities = {{ tools = true }}
            [[server]]
            model = "base"
            base_url = "{LOCAL}"
            api = "completions"
            """
        ),
        {"MY_KEY": "sk-1"},
    )
    first, second = client._settings.endpoints.servers
    assert (first.name, second.name) == ("cloud", "127.0.0.1:9/base")
    assert (first.prices.prompt, first.prices.completion, first.prices.cached_prompt) == (2e-6, 8e-6, None)
    assert first.capabilities.tools
    assert client._settings.endpoints.device is None


def test_a_server_may_have_another_api() -> None:
    text = f'[[server]]\nmodel = "a"\nbase_url = "{LOCAL}"\napi = "responses"\n'
    text += f'[[server]]\nmodel = "b"\nbase_url = "{LOCAL}"\napi = "messages"\nprobe = false\n'
    text += 'api_key_env = "MY_KEY"\nname = "claude"\nprices = { prompt = 3 }\n'
    first, second = build_client(parse_config(text), {"MY_KEY": "sk-1"})._settings.endpoints.servers
    assert isinstance(first, OpenAIEndpoint)
    assert first.api == "responses"
    assert isinstance(second, AnthropicEndpoint)
    assert (second.name, second.base_url, second.prices.prompt) == ("claude", LOCAL, 3e-6)


@pytest.mark.parametrize(("field", "value"), [("probe", "true"), ("provider", '"vllm"')])
def test_a_server_with_the_messages_api_is_neither_probed_nor_a_known_provider(field: str, value: str) -> None:
    text = f'[[server]]\nmodel = "b"\nbase_url = "{LOCAL}"\napi = "messages"\n{field} = {value}\n'
    with pytest.raises(ConfigError, match=rf'^server\[0\]\.{field}: can\'t be combined with api = "messages"$'):
        build_client(parse_config(text), {})


def test_a_device_may_be_a_server_at_a_url() -> None:
    text = f'[device]\nbase_url = "{LOCAL}"\nmodel = "qwen:1.5b"\nname = "ollama"\ncontext = 4096\napi_key_env = "LOCAL_KEY"\n'
    device = build_client(parse_config(text), {"LOCAL_KEY": "sk-2"})._settings.endpoints.device
    assert isinstance(device, LocalServerEndpoint)
    assert (device.name, device.kind, device.model) == ("ollama", "device", "qwen:1.5b")
    assert device.capabilities.context_tokens == 4096
    assert device.credentials() == (LOCAL, "sk-2")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[device]\n", "device.model: expected a value, got none"),
        ('[device]\nmodel = "packaged"\napi_key_env = "K"\n', "device.api_key_env: only valid with device.base_url"),
        ('[device]\nmodel = "packaged"\ncapabilities = { tools = true }\n', "device.capabilities: only valid with device.base_url"),
        (f'[device]\nbase_url = "{LOCAL}"\nthreads = 2\n', "device.threads: can't be combined with device.base_url"),
        (f'[device]\nbase_url = "{LOCAL}"\nreasoning_format = "none"\n', "device.reasoning_format: can't be combined with device.base_url"),
        (f'[device]\nbase_url = "{LOCAL}"\nsequences = 2\n', "device.sequences: can't be combined with device.base_url"),
        (f'[device]\nbase_url = "{LOCAL}"\n[speculate]\nmode = "auto"\n', "speculate.mode: expected .race. with device.base_url"),
    ],
)
def test_settings_without_effect_on_a_device_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        build_client(parse_config(text))


def test_a_device_is_made_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    path.touch()
    client = build_client(
        parse_config(f'[device]\nmodel = "{path}"\nname = "laptop"\ncontext = 512\nthreads = 1\nreasoning_format = "none"\n')
    )
    device = client._settings.endpoints.device
    assert isinstance(device, DeviceEndpoint)
    options = device._options
    assert (options.context_tokens, options.reasoning_format) == (512, "none")
    assert (device.name, device.kind) == ("laptop", "device")


def test_a_device_that_drafts_has_places_for_its_drafts_and_the_verifier_its_token(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    path.touch()
    text = f'''
        [device]
        model = "{path}"
        drafts = 3
        [dispatch]
        budget = 0.4
        [speculate]
        mode = "auto"
        verifier = "ws://127.0.0.1:9"
        token_env = "VERIFIER_TOKEN"
        budget = 0.5
        max_branches = 2
        '''
    client = build_client(parse_config(text), {"VERIFIER_TOKEN": "sk-2"})
    device, planner = client._settings.endpoints.device, drafting(client)
    assert isinstance(device, DeviceEndpoint)
    assert device._options.held_sequences == 12
    assert (client._settings.mode.name, planner.budget, planner.options.max_branches) == ("auto", 0.5, 2)
    assert planner.binding.verifier is not None
    assert planner.binding.verifier.name == "127.0.0.1:9"
    assert drafting(client.with_options(budget=0.1)).budget == 0.1
    with pytest.raises(ConfigError, match=r"speculate\.token_env"):
        build_client(parse_config(text), {})


def test_several_verifiers_are_a_pool_with_its_routing(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    path.touch()
    several = 'verifier = ["ws://127.0.0.1:9", "ws://127.0.0.1:10"]\nrouting = "round-robin"\n'
    text = f'[device]\nmodel = "{path}"\n[speculate]\nmode = "speculate"\n'
    pool = drafting(build_client(parse_config(text + several))).binding.verifier
    assert isinstance(pool, VerifierPool)
    assert [member.name for member in pool.members] == ["127.0.0.1:9", "127.0.0.1:10"]
    one = drafting(build_client(parse_config(text + 'verifier = ["ws://127.0.0.1:9"]\n'))).binding.verifier
    assert isinstance(one, VerifierEndpoint)
    for wrong, message in [
        (several.replace("round-robin", "nearest"), "routing: expected random"),
        ('verifier = "ws://127.0.0.1:9"\nrouting = "random"\n', "routing: only valid with several verifiers, got 'random' with one"),
        ('routing = "random"\n', "routing: only valid with several verifiers, got 'random' with none"),
        ("verifier = []\n", "expected a list of one verifier or more"),
    ]:
        with pytest.raises(ConfigError, match=message):
            build_client(parse_config(text + wrong))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[[server]]\nmodel = "m"\n[speculate]\nverifier = "ws://127.0.0.1:9"\n',
            r'speculate\.verifier: only valid with mode = "speculate" or "auto"',
        ),
        ("", r"expected a \[device\] section, a \[\[server\]\] section or both, got neither"),
        ('[device]\nmodel = "/nowhere.gguf"\n', r"device\.model: expected a GGUF file, got nothing at /nowhere\.gguf"),
        (
            f'[[server]]\nmodel = "m"\nbase_url = "{LOCAL}"\napi_key_env = "NOT_SET"\n',
            r"server\[0\]\.api_key_env: .* NOT_SET, got none",
        ),
        (f'[[server]]\nmodel = "m"\nbase_url = "{LOCAL}"\napi_key_env = "sk-x"\n', r"server\[0\]\.api_key_env: expected the name of"),
        (f'[[server]]\nmodel = "m"\nbase_url = "{LOCAL}"\n[dispatch]\nbudget = 2\n', "budget"),
        (f'[[server]]\nmodel = "m"\nbase_url = "{LOCAL}"\n[dispatch]\npolicy = "best"\n', "policy"),
        (f'[[server]]\nmodel = "m"\nbase_url = "{LOCAL}"\n[dispatch]\npace = -1\n', "pace"),
        (
            f'[[server]]\nmodel = "m"\nbase_url = "{LOCAL}"\n[migration]\nmax_migrations = -1\n',
            "migration: expected max_migrations of 0 or more",
        ),
    ],
)
def test_what_cannot_be_is_said(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_client(parse_config(text), {})


def test_the_clients_pace_is_that_of_the_file() -> None:
    section = f'[[server]]\nmodel = "m"\nbase_url = "{LOCAL}"\n'
    assert build_client(parse_config(section), {})._settings.pace is None
    assert build_client(parse_config(f'{section}[dispatch]\npace = "smooth"\n'), {})._settings.pace == "smooth"
    assert build_client(parse_config(f"{section}[dispatch]\npace = 7\n"), {})._settings.pace == 7.0
    with pytest.raises(ConfigError, match=r"dispatch\.pace"):
        parse_config(f'{section}[dispatch]\npace = "even"\n')


def test_the_clients_answers_move_as_the_file_says() -> None:
    section = f'[[server]]\nmodel = "m"\nbase_url = "{LOCAL}"\n'
    assert build_client(parse_config(section), {}).race.migration is None
    told = build_client(parse_config(f'{section}[migration]\nrule = "full-buffer"\nmax_migrations = 0\nunpaced = true\n'), {})
    assert told.race.migration == MigrationOptions(rule="full-buffer", max_migrations=0, unpaced=True)
    judged = build_client(parse_config(f"{section}[migration]\nmin_quality = 0.9\nquality = {{ '127.0.0.1:9/m' = 0.8 }}\n"), {})
    assert judged.race.migration == MigrationOptions(min_quality=0.9, quality={"127.0.0.1:9/m": 0.8})


def test_the_key_is_the_given_one_else_the_environments() -> None:
    environ = {"STREAMCO_PROXY_KEY": "from-env", "OTHER": "other", "EMPTY": ""}
    assert build_options(ProxyConfig(), environ={}).api_key is None
    assert build_options(ProxyConfig(), environ=environ).api_key == "from-env"
    assert build_options(ProxyConfig(), "given", environ).api_key == "given"
    assert build_options(parse_config('[proxy]\napi_key_env = "OTHER"\n'), environ=environ).api_key == "other"
    assert build_options(parse_config('[proxy]\napi_key_env = "EMPTY"\n'), environ=environ).api_key is None
    with pytest.raises(ConfigError, match="api_key: expected a key, got an empty string"):
        build_options(ProxyConfig(), "", {})


def test_shadow_answers_are_a_setting_of_a_file() -> None:
    text = '[dispatch]\nquality = { shadow = 0.1 }\n[[server]]\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n'
    assert build_client(parse_config(text), environ={}).race.quality == QualityTable(shadow=0.1)


def test_weights_choose_between_the_modes_of_a_file() -> None:
    text = '[[server]]\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n[weights]\ntime = 0.01\nmoney = 1\n'
    mode = build_client(parse_config(text), environ={})._settings.mode
    assert mode == Auto(Race(), time=0.01, money=1)
    assert parse_config(format_config(parse_config(text))).weights == Weights(time=0.01, money=1.0)
    with pytest.raises(ConfigError, match=r'speculate.mode: expected "race" or "auto" with \[weights\]'):
        build_client(parse_config(f'{text}[speculate]\nmode = "speculate"\n'), environ={})
    with pytest.raises(ConfigError, match=r"weights: .*expected a finite number"):
        parse_config("[weights]\ntime = -1\n")
    with pytest.raises(ConfigError, match=r"weights\.speed: expected one of time, money, quality, got a key that is unknown"):
        parse_config("[weights]\nspeed = 1\n")


def test_callers_take_the_place_of_the_key() -> None:
    config = parse_config('[callers]\nfile = "callers.sqlite"\nanswer_tokens = 9\n[device]\nmodel = "packaged"\n')
    options = build_options(config, environ={})
    assert (options.callers, options.answer_tokens, options.api_key, options.has_key) == ("callers.sqlite", 9, None, True)
    assert options.refuses_unknown_models
    with pytest.raises(ConfigError, match=r"callers: can't be combined with an api key, .* got one in STREAMCO_PROXY_KEY"):
        build_options(config, environ={"STREAMCO_PROXY_KEY": "sk-1"})
    with pytest.raises(ConfigError, match="callers: can't be combined with an api key"):
        build_options(config, "sk-1", environ={})
    split = parse_config('[callers]\nfile = "c"\n[split]\nparts = "p"\nservers = ["http://127.0.0.1:9"]\n')
    with pytest.raises(ConfigError, match=r"callers: can't be combined with \[split\]"):
        build_options(split, environ={})
    assert build_options(ProxyConfig(), environ={}).callers is None


def test_options_have_the_files_settings_and_the_servers_names() -> None:
    text = '[proxy]\nport = 9\nmax_streams = 3\nkeepalive = 1\n[[server]]\nmodel = "a"\nname = "cloud"\n[[server]]\nmodel = "a"\n'
    options = build_options(parse_config(text), environ={})
    assert (options.port, options.max_streams, options.keepalive) == (9, 3, 1.0)
    assert options.models == ("a", "cloud")


@pytest.mark.parametrize(("apis", "is_raw"), [((), True), (("completions",), True), (("chat",), False), (("completions", "chat"), False)])
def test_prompts_stay_raw_where_every_endpoint_takes_them(apis: tuple[str, ...], is_raw: bool) -> None:
    config = parse_config("".join(f'[[server]]\nmodel = "m"\napi = "{api}"\n' for api in apis))
    assert build_options(config, environ={}).raw_prompts is is_raw


async def test_what_was_learned_is_kept_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "learned.json"
    config = ProxyConfig(server=(ServerSection(model="m", base_url=LOCAL),), dispatch=DispatchSection(profile=str(path)))
    build_client(config, {})  # there is no file yet, and nothing is wrong with that
    async with Client(server=server(), mode=Race(policy="server-only")) as client:
        for _ in range(3):
            await ask(client)
        keep_profile(client, config)
    kept = load_profile(path)
    assert kept.lengths is not None
    assert build_client(config, {}).profile() is not None


def test_a_profile_that_is_none_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "learned.json"
    path.write_text("not one")
    config = ProxyConfig(server=(ServerSection(model="m", base_url=LOCAL),), dispatch=DispatchSection(profile=str(path)))
    with pytest.raises(ConfigError, match=r"learned\.json"):
        build_client(config, {})


async def test_without_a_file_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with Client(server=server()) as client:
        keep_profile(client, ProxyConfig())
    assert not list(tmp_path.iterdir())


# Servers that are asked at the start what they are


QUICK = Timeouts(connect=5.0)


async def test_what_a_server_says_of_itself_is_known_after_the_start() -> None:
    async with serving_engine(FakeEngine("one two", context_tokens=99)) as url:
        endpoint = ProbedEndpoint("fake", base_url=url, name="remote")
        before = endpoint.capabilities
        async with Client(server=endpoint) as client:
            after = endpoint.capabilities
            assert await ask(client) == "one two"
    assert (before.context_tokens, after.context_tokens) == (None, 99)
    assert (before.continuation, after.continuation != "none") == ("none", True)


async def test_keys_that_a_table_of_capabilities_leaves_out_stay_as_they_are_known() -> None:
    text = '[[server]]\nmodel = "m"\nprovider = "vllm"\n[[server]]\nmodel = "m"\nname = "n"\nprovider = "vllm"\n'
    text = text.replace('provider = "vllm"', f'provider = "vllm"\nbase_url = "{LOCAL}"')
    client = build_client(parse_config(f"{text}capabilities = {{ images = false, context_tokens = 50 }}\n"))
    known, changed = (each.capabilities for each in client._settings.endpoints.servers)
    assert known.images
    assert changed == replace(known, images=False, context_tokens=50)
    claude = f'[[server]]\nmodel = "m"\napi = "messages"\nbase_url = "{LOCAL}"\ncapabilities = {{ images = false }}\n'
    (third,) = build_client(parse_config(claude))._settings.endpoints.servers
    assert third.capabilities == Capabilities(tools=True, json_schema=True)


def test_a_device_at_a_url_takes_the_same_table() -> None:
    text = f'[device]\nbase_url = "{LOCAL}"\n'
    usual = build_client(parse_config(text))._settings.endpoints.device
    changed = build_client(parse_config(f"{text}capabilities = {{ tools = false, continuation = 'prefix' }}\n"))._settings.endpoints.device
    assert usual is not None
    assert changed is not None
    assert usual.capabilities.tools
    assert changed.capabilities == replace(usual.capabilities, tools=False, continuation="prefix")


async def test_what_was_declared_goes_before() -> None:
    async with serving_engine(FakeEngine(context_tokens=99)) as url:
        endpoint = ProbedEndpoint("fake", base_url=url, capabilities=Capabilities(tools=True, context_tokens=50))
        async with Client(server=endpoint):
            assert endpoint.capabilities.tools
            assert endpoint.capabilities.context_tokens == 50


async def test_a_server_that_does_not_answer_is_used_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    endpoint = ProbedEndpoint("m", base_url="http://127.0.0.1:9/v1", name="remote", timeouts=QUICK, retry=RetryPolicy(attempts=0))
    with caplog.at_level(logging.WARNING):
        async with Client(server=endpoint) as client:
            with pytest.raises(EndpointConnectError):
                await ask(client)
    assert "server not probed: remote: " in caplog.text


async def test_a_proxy_is_not_taken_for_a_server_that_can_go_on_with_an_answer() -> None:
    async with Client(server=server()) as client, serving(client) as url:
        endpoint = ProbedEndpoint("streamco", base_url=url)
        async with Client(server=endpoint):
            assert endpoint.capabilities.continuation == "none"


@pytest.mark.parametrize("is_probed", [False, True])
def test_the_configuration_chooses(is_probed: bool) -> None:
    text = f'[[server]]\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\nprobe = {str(is_probed).lower()}\n'
    (endpoint,) = build_client(parse_config(text), {})._settings.endpoints.servers
    assert isinstance(endpoint, ProbedEndpoint) is is_probed


SPLIT = """
[split]
parts = "parts/name"
servers = ["ws://127.0.0.1:1", "ws://127.0.0.1:2"]
token_env = "SPLIT_KEY"
states = "f16"
context = 512
"""


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    folder = tmp_path / "parts"
    folder.mkdir()
    for kind in ("input", "head"):
        (folder / f"name.{kind}.gguf").touch()
    return tmp_path


@pytest.mark.parametrize(("line", "expected"), [("", "auto"), ('states = "auto"', "auto"), ('states = "f32"', "f32")])
def test_the_format_of_states_is_chosen_for_each_answer_unless_one_is_given(parts: Path, line: str, expected: str) -> None:
    config = parse_config(SPLIT.replace('states = "f16"', line), folder=parts)
    assert parse_config(format_config(config)) == config
    endpoint = build_client(config, {"SPLIT_KEY": "secret"})._settings.endpoints.device
    assert isinstance(endpoint, SplitEndpoint)
    assert endpoint.states == expected


def test_a_split_model_is_made_from_its_section(parts: Path) -> None:
    config = parse_config(SPLIT + "[dispatch]\npace = 5.0\n", folder=parts)
    assert parse_config(format_config(config)) == config
    endpoint = build_client(config, {"SPLIT_KEY": "secret"})._settings.endpoints.device
    assert isinstance(endpoint, SplitEndpoint)
    assert (endpoint.states, endpoint.name) == ("f16", "split")
    assert [(address.url, address.token.given) for address in endpoint.addresses] == [
        ("ws://127.0.0.1:1/v1/verify", "secret"),
        ("ws://127.0.0.1:2/v1/verify", "secret"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[device]\nmodel = 'packaged'", "device: can't be combined with"),
        ("[[server]]\nmodel = 'gpt-4o-mini'", "server: can't be combined with"),
        ("[migration]\nunpaced = true", "migration: can't be combined with"),
        ("[speculate]\nmode = 'speculate'", "speculate: can't be combined with"),
        ("[dispatch]\nbudget = 0.5", "dispatch.budget: can't be combined with"),
        ("[dispatch]\non_failure = 'restart'", "dispatch.on_failure: can't be combined with"),
        ("[dispatch]\nprofile = 'learned.json'", "dispatch.profile: can't be combined with"),
    ],
)
def test_what_has_no_effect_on_a_split_model_is_refused(parts: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_client(parse_config(SPLIT + text, folder=parts), {"SPLIT_KEY": "secret"})


def test_a_split_model_needs_its_parts_and_a_server(tmp_path: Path, parts: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected .*other\.input\.gguf"):
        build_client(parse_config(SPLIT.replace("parts/name", "other"), folder=parts), {"SPLIT_KEY": "secret"})
    with pytest.raises(ConfigError, match="expected the URL of a server, got none"):
        build_client(parse_config("[split]\nparts = 'parts/name'\nservers = []", folder=parts))


def test_lookups_need_no_device_that_drafts() -> None:
    server = '[[server]]\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n'
    text = server + '[speculate]\nmode = "speculate"\ndrafter = "lookup"\n'
    client = build_client(parse_config(text))
    assert drafting(client).options.drafter == "lookup"
    assert drafting(build_client(parse_config(f'[device]\nbase_url = "{LOCAL}"\n' + text))).options.is_lookup
    for wrong, message in [
        (text.replace("lookup", "ngram"), r"speculate\.drafter: .*'ngram'"),
        (text + "budget = 0.5\n", 'speculate: budget: expected 1 with drafter="lookup"'),
    ]:
        with pytest.raises(ConfigError, match=message):
            build_client(parse_config(wrong))
