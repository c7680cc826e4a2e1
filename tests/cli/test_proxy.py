"""``streamco proxy`` as a process and as settings: the file, the options before it, its first line, its end."""

from __future__ import annotations

import argparse
import json
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from msgspec.structs import replace

from streamco.calibration.profile_store import load_profile
from streamco.cli import proxy
from streamco.cli.main import main
from streamco.errors import ConfigError
from streamco.proxy.config import CallersSection, CapabilityTable, DeviceSection, PriceTable, ServerSection, SplitSection, parse_config
from tests.cli.test_serve import address_of, ask, process

FAKE = """
import sys
from streamco.cli.main import main
from streamco.client.client import Client
from streamco.client.modes.race.mode import Race
from streamco.proxy import from_config as build
from streamco.testing.endpoint import ScriptedEndpoint
script = [(0.0, "one"), ({second}, " two")]
build.build_client = lambda config: Client(server=ScriptedEndpoint("server", script), mode=Race(policy="server-only"))
sys.exit(main(["proxy", *sys.argv[1:]]))
"""
PRICED = (
    FAKE.format(second=0.0)
    .replace('ScriptedEndpoint("server", script)', 'ScriptedEndpoint("server", script, prices=TokenPrices(prompt=1e-6, completion=1e-6))')
    .replace("import sys\n", "import sys\nfrom streamco.endpoints.base import TokenPrices\n")
)
CONFIG = """
[proxy]
port = 9000
[device]
model = "packaged"
threads = 2
[[server]]
model = "large"
base_url = "http://127.0.0.1:9/v1"
[dispatch]
budget = 0.7
pace = "reading"
"""


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    proxy.add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "proxy.toml"
    path.write_text(CONFIG)
    return str(path)


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_listens_answers_and_ends_on_a_signal(number: int) -> None:
    with process(FAKE.format(second=0.0), "--port", "0") as running:
        answer = ask(address_of(running))
        assert answer["choices"][0]["message"]["content"] == "one two"
        running.send_signal(number)
        rest, errors = running.communicate(timeout=30)
    assert (running.returncode, rest) == (0, "")
    assert errors.splitlines()[0].startswith("try: curl http://127.0.0.1:")
    assert errors.splitlines()[1:] == ["Ctrl-C stops it", "stopping: answers under way end with an error"]


def test_what_it_learned_is_written_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "learned.json"
    with process(FAKE.format(second=0.0), "--port", "0", "--profile", str(path)) as running:
        ask(address_of(running))
        running.terminate()
        running.communicate(timeout=30)
    assert running.returncode == 0
    assert load_profile(path).lengths is not None


def test_a_profile_that_cannot_be_written_at_the_end_is_said_and_the_stop_is_clean(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    with process(FAKE.format(second=0.0), "--port", "0", "--profile", str(folder / "learned.json")) as running:
        ask(address_of(running))
        folder.rmdir()
        folder.write_text("a file where the folder was")
        running.terminate()
        _, errors = running.communicate(timeout=30)
    assert running.returncode == 0
    assert "what was learned is lost" in errors
    assert "Traceback" not in errors


def test_a_signal_ends_a_running_stream_with_an_error_its_reader_can_tell() -> None:
    with process(FAKE.format(second=60.0), "--port", "0") as running:
        body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "stream": True}).encode()
        request = urllib.request.Request(f"{address_of(running)}/v1/chat/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as response:
            assert b'"one"' in response.readline()
            running.terminate()
            rest = response.read()
        assert running.wait(timeout=30) == 0
    assert b'"code":"shutdown"' in rest


def test_the_key_comes_from_the_environment_and_is_not_shown() -> None:
    with process(FAKE.format(second=0.0), "-vv", "--port", "0", env={"STREAMCO_PROXY_KEY": "sk-secret"}) as running:
        address = address_of(running)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(address)
        assert ask(address, Authorization="Bearer sk-secret")["object"] == "chat.completion"
        running.terminate()
        assert "sk-secret" not in "".join(running.communicate(timeout=30))


@pytest.mark.long
def test_a_port_that_is_taken_is_said_in_one_line() -> None:
    with process(FAKE.format(second=0.0), "--port", "0") as first:
        port = address_of(first).rpartition(":")[2]
        with process(FAKE.format(second=0.0), "--port", port) as second:
            out, errors = second.communicate(timeout=30)
    assert (second.returncode, out) == (1, "")
    assert errors.startswith(f"streamco proxy: 127.0.0.1:{port}: ")
    assert errors.count("\n") == 1


def test_options_go_before_the_file(config: str) -> None:
    words = "--host ::1 --port 1 --max-streams 2 --keepalive 3 --no-auth --threads 4 --budget 0.1 --policy both --pace off --profile p.json"
    effective = proxy.effective_config(parse("--config", config, *words.split()))
    section, dispatch = effective.proxy, effective.dispatch
    assert (section.host, section.port, section.max_streams, section.keepalive, section.allow_open) == ("::1", 1, 2, 3.0, True)
    assert effective.device == DeviceSection(model="packaged", threads=4)
    assert (dispatch.budget, dispatch.policy, dispatch.pace, dispatch.profile) == (0.1, "both", None, "p.json")


def test_a_pace_on_the_command_line_may_follow_the_text(config: str) -> None:
    assert proxy.effective_config(parse("--config", config, "--pace", "smooth")).dispatch.pace == "smooth"


def test_the_page_is_served_if_it_is_asked_for(tmp_path: Path) -> None:
    assert not proxy.effective_config(parse()).proxy.page
    assert proxy.effective_config(parse("--page")).proxy.page
    file = tmp_path / "proxy.toml"
    file.write_text("[proxy]\npage = true\n")
    assert proxy.effective_config(parse("--config", str(file))).proxy.page
    with process(FAKE.format(second=0.0), "--port", "0", "--page") as running:
        with urllib.request.urlopen(address_of(running) + "/", timeout=30) as response:
            assert response.headers["Content-Type"] == "text/html; charset=utf-8"
            assert b"page.js" in response.read()
        running.terminate()
        assert running.wait(timeout=30) == 0


def test_the_callers_file_of_the_command_line_goes_before_the_files(tmp_path: Path) -> None:
    assert proxy.effective_config(parse()).callers is None
    assert proxy.effective_config(parse("--callers", "a.sqlite")).callers == CallersSection(file="a.sqlite")
    file = tmp_path / "proxy.toml"
    file.write_text('[callers]\nfile = "b.sqlite"\nanswer_tokens = 9\n')
    assert proxy.effective_config(parse("--config", str(file), "--callers", "a.sqlite")).callers == CallersSection(
        file="a.sqlite", answer_tokens=9
    )


@pytest.mark.long
def test_callers_that_cannot_be_used_end_it_before_it_listens(tmp_path: Path) -> None:
    with process(PRICED, "--port", "0", "--callers", str(tmp_path / "none.sqlite")) as running:
        out, errors = running.communicate(timeout=30)
    assert (running.returncode, out) == (2, "")
    assert "callers: expected a file that can be read and written" in errors
    with process(FAKE.format(second=0.0), "--port", "0", "--callers", str(tmp_path / "none.sqlite")) as running:
        out, errors = running.communicate(timeout=30)
    assert (running.returncode, out) == (2, "")
    assert "callers: expected known prices of each server" in errors


def test_a_caller_of_the_file_is_answered_and_nothing_of_its_key_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "callers.sqlite")
    assert main(["callers", "add", "alice", "--budget", "0.5", "--file", file]) == 0
    key = capsys.readouterr().out.strip()
    with process(PRICED, "-vv", "--port", "0", "--callers", file) as running:
        address = address_of(running)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(address)
        assert ask(address, Authorization=f"Bearer {key}")["object"] == "chat.completion"
        running.terminate()
        said = "".join(running.communicate(timeout=30))
    assert running.returncode == 0
    assert "alice" in said
    assert key not in said
    assert main(["callers", "usage", "alice", "--file", file]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[1] == "1"


def test_who_drafts_and_who_verifies_can_be_said_on_the_command_line() -> None:
    speculate = proxy.effective_config(parse("--mode", "speculate", "--verifier", "ws://127.0.0.1:9")).speculate
    assert (speculate.mode, speculate.verifier, speculate.budget) == ("speculate", "ws://127.0.0.1:9", 1.0)
    looked_up = proxy.effective_config(parse("--mode", "speculate", "--drafter", "lookup")).speculate
    assert (looked_up.drafter, speculate.drafter) == ("lookup", "device")
    several = ("--verifier", "ws://127.0.0.1:9", "--verifier", "ws://127.0.0.1:10", "--routing", "random")
    speculate = proxy.effective_config(parse("--mode", "speculate", *several)).speculate
    assert (speculate.verifier, speculate.routing) == (("ws://127.0.0.1:9", "ws://127.0.0.1:10"), "random")
    with pytest.raises(SystemExit):
        parse("--mode", "both")


def test_what_is_not_given_stays_as_the_file_says(config: str) -> None:
    effective = proxy.effective_config(parse("--config", config))
    assert effective == parse_config(CONFIG)


def test_a_server_on_the_command_line_takes_the_place_of_the_files(config: str) -> None:
    effective = proxy.effective_config(parse("--config", config, "--server", "other", "--base-url", "http://127.0.0.1:8/v1"))
    assert effective.server == (ServerSection(model="other", base_url="http://127.0.0.1:8/v1"),)


def test_a_device_can_be_a_url(config: str, tmp_path: Path) -> None:
    for words in (("--config", config), ()):
        found = proxy.effective_config(parse(*words, "--device", "http://127.0.0.1:11434", "--device-model", "qwen:1.5b"))
        assert found.device == DeviceSection(base_url="http://127.0.0.1:11434", model="qwen:1.5b")
    with pytest.raises(ConfigError, match="--device-model: only valid with --device URL"):
        proxy.effective_config(parse("--config", config, "--device-model", "qwen:1.5b"))
    file = tmp_path / "local.toml"
    file.write_text('[device]\nbase_url = "http://127.0.0.1:1"\nmodel = "a"\nname = "mine"\ncontext = 4096\napi_key_env = "K"\n')
    same = DeviceSection(base_url="http://127.0.0.1:1", model="a", name="mine", context=4096, api_key_env="K")
    assert proxy.effective_config(parse("--config", str(file), "--device", "http://127.0.0.1:1")).device == same
    named = proxy.effective_config(parse("--config", str(file), "--device-model", "b")).device
    assert named == replace(same, model="b")
    with pytest.raises(ConfigError, match=r"which device\.api_key_env is for, got http://127\.0\.0\.1:2"):
        proxy.effective_config(parse("--config", str(file), "--device", "http://127.0.0.1:2"))
    file.write_text('[device]\nbase_url = "http://127.0.0.1:1"\nmodel = "a"\nname = "mine"\ncontext = 4096\n')
    other = proxy.effective_config(parse("--config", str(file), "--device", "http://127.0.0.1:2")).device
    assert other == DeviceSection(base_url="http://127.0.0.1:2", name="mine", context=4096)


def test_capabilities_of_a_files_device_are_those_of_its_url_alone(tmp_path: Path) -> None:
    file = tmp_path / "proxy.toml"
    file.write_text('[device]\nbase_url = "http://127.0.0.1:1"\ncapabilities = { tools = true }\n')
    for words, expected in (
        ((), CapabilityTable(tools=True)),
        (("--device", "http://127.0.0.1:1"), CapabilityTable(tools=True)),
        (("--device", "http://127.0.0.1:2"), None),
        (("--device", "small.gguf"), None),
    ):
        device = proxy.effective_config(parse("--config", str(file), *words)).device
        assert device is not None
        assert device.capabilities == expected, words


def test_a_device_can_be_named_and_left_out(config: str) -> None:
    named = proxy.effective_config(parse("--config", config, "--device", "mine.gguf"))
    assert named.device == DeviceSection(model="mine.gguf", threads=2)
    assert proxy.effective_config(parse("--config", config, "--no-device")).device is None


def test_a_split_model_can_be_named_on_the_command_line(tmp_path: Path) -> None:
    named = proxy.effective_config(parse("--split", "ws://a:1", "--split", "ws://b:1", "--device", "parts/name", "--threads", "2"))
    assert named.split == SplitSection(parts="parts/name", servers=("ws://a:1", "ws://b:1"), threads=2)
    assert (named.device, named.server) == (None, ())
    file = tmp_path / "proxy.toml"
    file.write_text('[split]\nparts = "/parts/name"\nservers = ["ws://a:1"]\nstates = "f16"\n')
    other = proxy.effective_config(parse("--config", str(file), "--split", "ws://b:1")).split
    assert other == SplitSection(parts="/parts/name", servers=("ws://b:1",), states="f16")
    with pytest.raises(ConfigError, match="--split: only valid with --device parts/NAME"):
        proxy.effective_config(parse("--split", "ws://a:1"))
    with pytest.raises(ConfigError, match="--no-device: can't be combined with a split model"):
        proxy.effective_config(parse("--split", "ws://a:1", "--no-device"))


def test_with_nobody_named_the_packaged_model_answers() -> None:
    assert proxy.effective_config(parse()).device == DeviceSection(model="packaged")
    assert proxy.effective_config(parse("--server", "gpt-4o-mini")).device is None


def test_the_effective_configuration_is_printed_without_keys(
    config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMCO_PROXY_KEY", "sk-secret")
    monkeypatch.setenv("MY_KEY", "sk-secret")
    words = ["--print-config", "--server", "gpt", "--api-key-env", "MY_KEY", "--client-key-env", "MINE", "--prices", "0.15/0.6"]
    assert main(["proxy", "--config", config, *words]) == 0
    printed = capsys.readouterr().out
    assert parse_config(printed) == proxy.effective_config(parse("--config", config, *words))
    assert 'api_key_env = "MY_KEY"' in printed
    assert 'api_key_env = "MINE"' in printed
    assert parse_config(printed).server[0].prices == PriceTable(prompt=0.15, completion=0.6)
    assert "sk-secret" not in printed


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--host", "0.0.0.0", "--server", "m", "--base-url", "http://127.0.0.1:9/v1"], "host: expected a loopback address"),
        (["--port", "70000"], "port: expected at most 65535"),
        (["--ready-fd", "9999"], "ready-fd: expected an open file descriptor"),
        (["--base-url", "http://127.0.0.1:9"], "only valid with --server MODEL"),
        (["--no-device"], "expected a [device] section, a [[server]] section or both"),
        (["--device", "/nowhere.gguf"], "device.model: expected a GGUF file, got nothing at /nowhere.gguf"),
        (["--server", "m", "--api-key-env", "NOT_SET"], "NOT_SET"),
        (["--client-key-env", "NOT_SET"], "--client-key-env: expected a key in the environment variable NOT_SET, got none"),
        (["--prices", "1/2"], "--prices: only valid with --server MODEL"),
        (["--config", "/nowhere.toml"], "config: expected a file that can be read"),
    ],
)
def test_settings_that_cannot_be_are_said_in_one_line(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["proxy", *words]) == 2
    errors = capsys.readouterr().err
    assert text in errors
    assert errors.startswith("streamco: ")
    assert errors.count("\n") == 1


def test_contradictions_are_usage_errors() -> None:
    with pytest.raises(ConfigError, match="only valid with --server MODEL"):
        proxy.effective_config(parse("--api-key-env", "X"))
    with pytest.raises(SystemExit):
        parse("--budget", "2")


@pytest.mark.model
def test_the_packaged_model_answers_without_any_setting_but_the_port() -> None:
    code = "import sys; from streamco.cli.main import main; sys.exit(main(['proxy', *sys.argv[1:]]))"
    with process(code, "--port", "0", "--threads", "1") as running:
        answer = ask(address_of(running))
        assert answer["usage"]["completion_tokens"] == 2
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=30)
    assert running.returncode == 0


def test_origins_of_the_command_line_are_in_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["proxy", "--cors", "http://localhost:3000", "--cors", "https://example.org", "--print-config"]) == 0
    assert 'cors = ["http://localhost:3000", "https://example.org"]' in capsys.readouterr().out
