"""The configuration file: what it may say, how it is checked, and that its printed form says the same."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from streamco.client.modes.race.migration import MigrationOptions
from streamco.client.modes.race.mode import Race
from streamco.client.modes.race.quality_gate import QualityGate
from streamco.client.modes.speculation.mode import Speculate
from streamco.config import Timeouts
from streamco.endpoints.base import Capabilities, TokenPrices
from streamco.endpoints.known_servers.declared import CapabilityChanges
from streamco.errors import ConfigError
from streamco.proxy.config import (
    CallersSection,
    CapabilityTable,
    DeviceSection,
    DispatchSection,
    PriceTable,
    ProxyConfig,
    ProxyOptions,
    ProxySection,
    QualityTable,
    ServerSection,
    format_config,
    load_config,
    parse_config,
)

FULL = """
[proxy]
port = 9000
max_streams = 7

[device]
model = "small.gguf"
threads = 2
context = 4096

[[server]]
model = "gpt-4o-mini"
api_key_env = "MY_KEY"
prices = { prompt = 0.15, completion = 0.6 }

[[server]]
model = "deepseek-chat"
base_url = "https://api.deepseek.com"
name = "deepseek"
timeouts = { first_token = 20, total = 300 }
capabilities = { tools = true }

[dispatch]
budget = 1
policy = "both"
pace = "reading"
profile = "learned.json"

[migration]
rule = "full-buffer"
max_migrations = 2
unpaced = true
min_quality = 0.9
quality = { device = 0.3, "gpt-4o-mini" = 0.8 }
"""


def test_a_file_that_says_nothing_is_all_defaults() -> None:
    assert parse_config("") == ProxyConfig()


def test_every_section_is_understood() -> None:
    config = parse_config(FULL)
    assert (config.proxy.port, config.proxy.max_streams, config.proxy.host) == (9000, 7, "127.0.0.1")
    assert config.device == DeviceSection(model="small.gguf", threads=2, context=4096)
    assert config.server == (
        ServerSection(model="gpt-4o-mini", api_key_env="MY_KEY", prices=PriceTable(prompt=0.15, completion=0.6)),
        ServerSection(
            model="deepseek-chat",
            base_url="https://api.deepseek.com",
            name="deepseek",
            timeouts=Timeouts(first_token=20.0, total=300.0),
            capabilities=CapabilityTable(tools=True),
        ),
    )
    assert config.dispatch == DispatchSection(budget=1.0, policy="both", pace="reading", profile="learned.json")
    assert config.migration == MigrationOptions(
        rule="full-buffer", max_migrations=2, unpaced=True, min_quality=0.9, quality={"device": 0.3, "gpt-4o-mini": 0.8}
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[proxi]\n",
            r"proxi: expected one of proxy, device, .*, split, tasks, callers, got a key that is unknown",
        ),
        ('[proxy]\nhots = "x"\n', r"proxy\.hots: expected one of host, port, .*, got a key that is unknown"),
        ('[[server]]\nmodel = "m"\n[[server]]\nmodel = "n"\napi_key = "sk-1"\n', r"server\[1\]\.api_key: expected one of model, base_url"),
        ('[[server]]\nmodel = "m"\nprices = { promt = 1 }\n', r"server\[0\]\.prices\.promt: expected one of prompt, completion"),
        ('[[server]]\nmodel = "m"\ntimeouts = { read = 1 }\n', r"server\[0\]\.timeouts\.read: expected one of connect"),
        ("[device]\nthreads = 2\n", r"device\.model: expected a value, got none"),
        ("[proxy]\nport = '80'\n", r"proxy\.port: expected int, got str"),
        ("[dispatch]\nbudget = true\n", r"dispatch\.budget: expected float, got bool"),
        ("[dispatch]\nquality = 'high'\n", r"dispatch\.quality: invalid enum value 'high'"),
        (
            "[dispatch]\nquality = { min_score = 2.0 }\n",
            r"dispatch\.quality: quality gate: min_score: expected a share from 0 to 1, got 2\.0",
        ),
        ("[dispatch]\nquality = { score = 1 }\n", r"dispatch\.quality\.score: expected one of min_score, tokens, max_wait"),
        ("[dispatch]\non_failure = 'retry'\n", r"dispatch\.on_failure: invalid enum value 'retry'"),
        ("[migration]\nrule = 'buffer'\n", r"migration\.rule: invalid enum value 'buffer'"),
        (
            "[migration]\nmoves = 2\n",
            r"migration\.moves: expected one of rule, max_migrations, unpaced, min_quality, quality, got a key",
        ),
        ("proxy = 3\n", r"proxy: expected object, got int"),
        ("[server]\nmodel = 'm'\n", r"server: expected array, got object"),
        ("[proxy\n", r"expected TOML, got .*line 1"),
        (f"[proxy]\nport = {'9' * 5000}\n", r"expected TOML, got .*4300"),
        (f"[proxy]\nport = -{'9' * 5000}\n", r"expected TOML, got .*4300"),
        (f"a = {'[' * 5000}{']' * 5000}\n", r"expected TOML with fewer levels of nesting, got more"),
        (f"a = {'{ b = ' * 5000}1{' }' * 5000}\n", r"expected TOML with fewer levels of nesting, got more"),
    ],
)
def test_what_is_wrong_is_named_with_what_would_be_right(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"mine: {message}"):
        parse_config(text, where="mine")


def test_a_key_written_into_the_file_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config('[[server]]\nmodel = "m"\napi_key = "sk-secret"\n')
    assert "secret" not in str(caught.value)


def test_paths_are_relative_to_the_file_and_know_the_home(tmp_path: Path) -> None:
    path = tmp_path / "proxy.toml"
    path.write_text('[device]\nmodel = "models/small.gguf"\n[dispatch]\nprofile = "~/learned.json"\n[callers]\nfile = "callers.sqlite"\n')
    config = load_config(path)
    assert config.callers == CallersSection(file=str(tmp_path / "callers.sqlite"))
    assert config.device is not None
    assert config.device.model == str(tmp_path / "models" / "small.gguf")
    assert config.dispatch.profile == str(Path.home() / "learned.json")


def test_the_model_of_a_device_at_a_url_is_no_path(tmp_path: Path) -> None:
    path = tmp_path / "proxy.toml"
    path.write_text('[device]\nbase_url = "http://127.0.0.1:11434"\nmodel = "qwen:1.5b"\n')
    assert load_config(path).device == DeviceSection(base_url="http://127.0.0.1:11434", model="qwen:1.5b")


def test_the_packaged_model_is_no_path(tmp_path: Path) -> None:
    path = tmp_path / "proxy.toml"
    path.write_text('[device]\nmodel = "packaged"\n')
    assert load_config(path).device == DeviceSection(model="packaged")


@pytest.mark.parametrize("data", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_said(tmp_path: Path, data: bytes | None) -> None:
    path = tmp_path / "proxy.toml"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConfigError, match="config: expected a file that can be read, got"):
        load_config(path)


def test_the_printed_form_says_the_same() -> None:
    config = parse_config(FULL)
    assert parse_config(format_config(config)) == config


def test_the_printed_form_names_defaults_and_leaves_out_what_is_not_set() -> None:
    text = format_config(ProxyConfig())
    assert "[proxy]\n" in text
    assert "port = 8080\n" in text
    assert "budget = 0.3\n" in text
    assert '[migration]\nrule = "pre-copy"\nmax_migrations = 1\nunpaced = false\n' in text
    assert '[speculate]\nmode = "race"\nis_plain = false\nbudget = 1.0\n' in text
    assert "[device]" not in text
    assert "\npace" not in text


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
CONFIGS = st.builds(
    ProxyConfig,
    proxy=st.builds(ProxySection, host=TEXTS, port=st.integers(0, 65535), allow_open=st.booleans(), keepalive=NUMBERS),
    device=st.none() | st.builds(DeviceSection, model=TEXTS, threads=st.none() | st.integers(1, 64), base_url=st.none() | TEXTS),
    server=st.lists(
        st.builds(
            ServerSection,
            model=TEXTS,
            name=st.none() | TEXTS,
            prices=st.none() | st.builds(PriceTable, prompt=st.none() | st.floats(0, 1e8)),
            capabilities=st.none() | st.builds(CapabilityTable, tools=st.none() | st.booleans(), vocabulary=st.none() | TEXTS),
        ),
        max_size=3,
    ).map(tuple),
    dispatch=st.builds(
        DispatchSection,
        budget=NUMBERS,
        pace=st.none() | st.just("reading") | NUMBERS,
        seed=st.none() | st.integers(0, 2**62),
        quality=st.none()
        | st.just("gate")
        | st.builds(
            QualityTable, min_score=st.none() | st.floats(0, 1), tokens=st.integers(1, 16), max_wait=st.floats(0, 3600, exclude_min=True)
        ),
    ),
    migration=st.builds(
        MigrationOptions,
        rule=st.sampled_from(["pre-copy", "full-buffer"]),
        max_migrations=st.integers(0, 9),
        unpaced=st.booleans(),
        min_quality=st.none() | st.floats(0, 1),
        quality=st.none() | st.dictionaries(TEXTS, st.floats(0, 1e9)),
    ),
    callers=st.none() | st.builds(CallersSection, file=TEXTS, answer_tokens=st.integers(1, 10**6)),
)


@given(CONFIGS)
def test_any_configuration_survives_being_printed(config: ProxyConfig) -> None:
    assert parse_config(format_config(config)) == config


def test_a_quality_gate_of_a_file_is_the_races() -> None:
    config = parse_config("[dispatch]\nquality = { min_score = 0.6, tokens = 8 }\n")
    race = config.dispatch.race(config.migration)
    assert isinstance(race.quality, QualityGate)
    assert (race.quality.min_score, race.quality.tokens) == (0.6, 8)
    assert parse_config('[dispatch]\nquality = "gate"\n').dispatch.race(config.migration).quality == "gate"


def test_the_files_defaults_are_the_options_own() -> None:
    section, options = ProxySection(), ProxyOptions()
    for name in ("host", "allow_open", "page", "max_body_bytes", "max_streams", "keepalive", "idle_timeout", "reader_timeout"):
        assert getattr(section, name) == getattr(options, name), name


def test_the_files_capabilities_are_those_of_an_endpoint() -> None:
    assert CapabilityTable.__struct_fields__ == Capabilities.__struct_fields__ == tuple(CapabilityChanges.__annotations__)
    assert CapabilityTable().changes() == {}
    assert CapabilityTable(tools=False, continuation="none").changes() == {"tools": False, "continuation": "none"}


@pytest.mark.parametrize("name", ["prompt", "completion", "cached_prompt"])
@pytest.mark.parametrize("price", ["nan", "-nan", "inf", "-inf", "1e400", "-1.0", "-1", "-1e-9", "1e9"])
def test_a_price_that_cannot_be_is_refused_when_the_file_is_read(name: str, price: str) -> None:
    text = f'[[server]]\nmodel = "m"\nprices = {{ {name} = {price} }}\n'
    with pytest.raises(ConfigError, match=rf"server\[0\]\.prices: prices: {name}: expected 0 to 1e\+08 US dollars for 1000000 tokens, got"):
        parse_config(text)


@pytest.mark.parametrize("price", ["0", "-0.0", "1e-9", "1000", "1e8"])
def test_a_price_that_can_be_is_taken(price: str) -> None:
    (server,) = parse_config(f'[[server]]\nmodel = "m"\nprices = {{ prompt = {price} }}\n').server
    assert server.prices is not None
    assert server.prices.per_token() == TokenPrices(prompt=float(price) / 1e6)


@pytest.mark.parametrize("section", ['[device]\nbase_url = "http://127.0.0.1:1"\n', '[[server]]\nmodel = "m"\n'])
def test_capabilities_are_checked_key_by_key(section: str) -> None:
    config = parse_config(section + 'capabilities = { tools = true, images = false, pre_copy = "warm" }\n')
    (found,) = [each.capabilities for each in (config.device, *config.server) if each is not None]
    assert found == CapabilityTable(tools=True, images=False, pre_copy="warm")
    assert parse_config(format_config(config)) == config
    for table, message in (
        ("{ tool = true }", r"capabilities\.tool: expected one of vocabulary, .*, got a key that is unknown"),
        ("{ tools = 1 }", r"capabilities\.tools: expected bool"),
        ("{ context_tokens = 0 }", r"capabilities\.context_tokens: expected int >= 1"),
        ('{ continuation = "some" }', r"capabilities\.continuation: invalid enum value"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse_config(f"{section}capabilities = {table}\n")


def test_the_files_callers_have_the_options_own_limit() -> None:
    assert CallersSection(file="callers.sqlite").answer_tokens == ProxyOptions().answer_tokens


def test_a_file_that_says_nothing_is_the_clients_default_mode() -> None:
    config = ProxyConfig()
    assert config.dispatch.race(config.migration) == Race()
    assert replace(config.speculate.drafting(None), budget=None) == Speculate()


@pytest.mark.parametrize("key", ["dispatch.gate", "speculate.tuning"])
def test_what_only_a_program_can_set_is_no_key_of_the_file(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key}: expected one of .*, got a key that is unknown"):
        parse_config(f"{key} = 1\n")


@pytest.mark.parametrize(("key", "message"), [("dispatch.reader_rate = -1", "reader_rate"), ("speculate.patience = 0", "patience above 0")])
def test_a_setting_of_a_mode_that_is_out_of_range_is_refused_when_the_file_is_read(key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(f"{key}\n")


def test_numbers_that_toml_writes_otherwise_are_read_back() -> None:
    for value in (1e16, 1e-7, 5e-324, 1e300):
        assert math.isclose(parse_config(format_config(ProxyConfig(dispatch=DispatchSection(budget=value)))).dispatch.budget, value)


def test_origins_survive_being_printed_and_reach_the_server() -> None:
    config = parse_config('[proxy]\ncors = ["http://localhost:3000", "https://example.org"]\n[device]\nmodel = "packaged"\n')
    assert config.proxy.cors == ("http://localhost:3000", "https://example.org")
    assert parse_config(format_config(config)) == config
