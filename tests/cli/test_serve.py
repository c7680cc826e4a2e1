"""``streamco serve`` as a process: its first line, its settings, its end."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamco.cli import serve
from streamco.emulation.latency_replay import LatencyReplays
from streamco.emulation.profiles import load_latency
from streamco.errors import ConfigError, EngineError
from streamco.testing.engine import FakeEngine

FAKE = """
import argparse, sys
from streamco.cli import serve
from streamco.testing.engine import FakeEngine
engine = FakeEngine("one two three", mode={mode!r}, token_s=0.05)
serve._load = lambda args, path: engine
parser = argparse.ArgumentParser()
serve.add_arguments(parser)
status = serve.run(parser.parse_args())
print("closed" if engine.is_closed else "open", flush=True)
sys.exit(status)
"""
REAL = """
import argparse, sys
from streamco.cli import serve
parser = argparse.ArgumentParser()
serve.add_arguments(parser)
sys.exit(serve.run(parser.parse_args()))
"""


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "tiny.Q4.gguf"
    path.touch()
    return str(path)


@contextmanager
def process(code: str, *words: str, env: dict[str, str] | None = None, fds: Sequence[int] = ()) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
        pass_fds=fds,
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def address_of(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    line = running.stdout.readline()
    assert line.startswith("listening on http://127.0.0.1:"), line + (running.stderr.read() if running.stderr else "")
    return line.removeprefix("listening on ").strip()


def ask(address: str, **headers: str) -> dict[str, Any]:
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}).encode()
    request = urllib.request.Request(f"{address}/v1/chat/completions", body, {"Content-Type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=30) as response:
        return dict(json.load(response))


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_listens_answers_and_ends_on_a_signal(model: str, number: int) -> None:
    with process(FAKE.format(mode="instant"), "--model", model, "--port", "0") as running:
        answer = ask(address_of(running))
        assert answer["choices"][0]["message"]["content"] == "one two"
        assert answer["model"] == "tiny.Q4"
        running.send_signal(number)
        rest, errors = running.communicate(timeout=30)
    said = errors.splitlines()
    assert (running.returncode, rest) == (0, "closed\n")
    assert [said[0].split(" http:")[0], *said[1:]] == ["try: curl", "Ctrl-C stops it", "stopping: answers under way end with an error"]


def test_a_signal_ends_a_running_stream_with_an_error_its_reader_can_tell(model: str) -> None:
    with process(FAKE.format(mode="manual"), "--model", model, "--port", "0", "--keepalive", "0.05") as running:
        body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "stream": True}).encode()
        request = urllib.request.Request(f"{address_of(running)}/v1/chat/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as response:
            assert response.readline() == b": keep-alive\n"
            running.terminate()
            rest = response.read()
        assert running.wait(timeout=30) == 0
    assert b'"code":"shutdown"' in rest
    assert b"[DONE]" not in rest


def test_a_ready_descriptor_gets_the_address_and_is_closed(model: str) -> None:
    reading, writing = os.pipe()
    with process(FAKE.format(mode="instant"), "--model", model, "--port", "0", "--ready-fd", str(writing), fds=[writing]) as running:
        os.close(writing)
        with os.fdopen(reading) as ready:
            address = ready.read()
        assert address == address_of(running) + "\n"


def test_the_key_comes_from_the_environment_and_is_not_shown(model: str) -> None:
    with process(FAKE.format(mode="instant"), "--model", model, "--port", "0", env={serve.KEY_VARIABLE: "sk-secret"}) as running:
        address = address_of(running)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(address)
        assert ask(address, Authorization="Bearer sk-secret")["object"] == "chat.completion"
        running.terminate()
        assert "sk-secret" not in "".join(running.communicate(timeout=30))


def test_an_option_goes_before_the_environment(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(serve.KEY_VARIABLE, "from-the-environment")
    monkeypatch.setenv("MINE", "given")
    assert serve._options(parse("--client-key-env", "MINE"), Path(model)).api_key == "given"
    assert serve._options(parse(), Path(model)).api_key == "from-the-environment"
    monkeypatch.setenv(serve.KEY_VARIABLE, "")
    assert serve._options(parse(), Path(model)).api_key is None
    with pytest.raises(ConfigError, match="--client-key-env: expected a key in the environment variable NOT_SET, got none"):
        serve._options(parse("--client-key-env", "NOT_SET"), Path(model))


def test_a_key_on_the_command_line_is_refused_and_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--api-key", "sk-secret")
    said = capsys.readouterr().err
    assert "--api-key: expected no key on the command line" in said
    assert serve.KEY_VARIABLE in said
    assert "sk-secret" not in said


def test_a_file_of_keys_goes_beside_the_key_of_the_environment(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text("alice sk-a\nbob sk-b\n")
    monkeypatch.setenv(serve.KEY_VARIABLE, "sk-environment")
    assert {key.key for key in serve._options(parse("--api-key-file", str(file)), Path(model)).keys} == {"sk-environment", "sk-a", "sk-b"}
    monkeypatch.setenv("FIRST", "k1")
    given = serve._options(parse("--client-key-env", "FIRST", "--api-key-file", str(file)), Path(model))
    assert {key.key for key in given.keys} == {"k1", "sk-a", "sk-b"}
    monkeypatch.setenv(serve.KEY_VARIABLE, "sk-a")
    assert [key.name for key in serve._options(parse("--api-key-file", str(file)), Path(model)).keys] == ["alice", "bob"]


def test_several_keys_come_from_variables_and_a_file_and_have_names(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRST", "k1")
    monkeypatch.setenv("SECOND", "k2")
    file = tmp_path / "keys"
    file.write_text("alice sk-a\nbob sk-b\n")
    both = serve._options(parse("--client-key-env", "FIRST", "--client-key-env", "SECOND", "--api-key-file", str(file)), Path(model))
    assert [(key.name, key.key) for key in both.keys] == [("key-1", "k1"), ("key-2", "k2"), ("alice", "sk-a"), ("bob", "sk-b")]
    alone = serve._options(parse("--api-key-file", str(file)), Path(model))
    assert [key.name for key in alone.keys] == ["alice", "bob"]
    with pytest.raises(ConfigError, match="api key file"):
        serve._options(parse("--api-key-file", str(tmp_path / "none")), Path(model))


def test_options_reach_the_server(model: str) -> None:
    words = "--port 0 --max-body 100 --max-prompt-tokens 5 --max-tokens 6 --max-streams 7 --keepalive 3 --latency-seed 9 --model-name mine"
    options = serve._options(parse(*words.split(), "--latency", "openai-gpt-4-0125-preview"), Path(model))
    assert (options.max_body_bytes, options.max_prompt_tokens, options.max_tokens, options.max_streams) == (100, 5, 6, 7)
    assert (options.keepalive, options.model) == (3.0, "mine")
    assert options.hold == LatencyReplays(load_latency("openai-gpt-4-0125-preview"), 9)


def test_options_reach_the_verifier(model: str) -> None:
    words = "--verify-policy strict --verify-sessions 5 --verify-connections 6 --verify-peer 7 --verify-resume 8"
    verify = serve._options(parse(*words.split()), Path(model)).verify
    assert verify is not None
    assert (verify.policy, verify.load.sessions, verify.connections, verify.peer_connections, verify.resume_s) == ("strict", 5, 6, 7, 8)
    verify = serve._options(parse("--verify-policy", "mixed", "--verify-room", "64"), Path(model)).verify
    assert verify is not None
    assert (verify.policy, verify.room) == ("mixed", 64)


def test_each_step_of_the_start_is_said_once(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = serve.LoadingLines(Path(model), is_measured=True)
    for share in (0.0, 0.5, 0.9):
        lines.record(share)
    assert capsys.readouterr().err == "loading tiny.Q4.gguf, 0 bytes ...\n"
    lines.record(1.0)
    lines.record(1.0)
    assert capsys.readouterr().err == "measuring how long its steps take, unless that is known ...\n"


def test_the_line_to_try_names_the_keys_variable_and_never_the_key(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "sk-secret")
    args = parse("--client-key-env", "MINE")
    (line,) = serve._hints(args, serve._options(args, Path(model)), "http://127.0.0.1:8000/v1")
    assert line.startswith('try: curl http://127.0.0.1:8000/v1/chat/completions -H "Authorization: Bearer $MINE" -H ')
    assert "sk-secret" not in line
    file = Path(model).with_name("keys")
    file.write_text("alice sk-a\n")
    args = parse("--api-key-file", str(file))
    assert '"Authorization: Bearer KEY"' in serve._hints(args, serve._options(args, Path(model)), "http://127.0.0.1:8000/v1")[0]
    assert serve._hints(parse("--middle"), serve._options(args, Path(model)), "http://127.0.0.1:8000/v1") == []


def test_settings_reach_the_engine(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def load(path: Path, options: Any, *, on_progress: Any, pace: Any = None) -> FakeEngine:
        seen.update(path=path, options=options, pace=pace)
        return FakeEngine()

    monkeypatch.setattr("streamco.engines.llama.LlamaEngine", load)
    words = "--context 300 --sequences 3 --threads 1 --exact --prefill-chunk 64 --step-times llama2-70b-a100x4"
    serve._load(parse(*words.split()), Path(model))
    options = seen["options"]
    assert (options.context_tokens, options.max_sequences, options.threads, options.exact, options.prefill_chunk) == (300, 3, 1, True, 64)
    assert seen["pace"].step_time.name == "llama2-70b-a100x4"
    assert options.held_sequences == serve.EXACT_PLACES
    serve._load(parse("--context", "300"), Path(model))
    assert (seen["options"].held_sequences, seen["options"].held_tokens) == (serve.PLACES, 1200)
    serve._load(parse("--verify-places", "7", "--verify-tokens", "900"), Path(model))
    assert (seen["options"].held_sequences, seen["options"].held_tokens) == (7, 900)
    assert not seen["options"].private
    serve._load(parse("--verify-private"), Path(model))
    assert seen["options"].private
    assert seen["options"].reasoning_format == "auto"
    serve._load(parse("--reasoning-format", "none"), Path(model))
    assert seen["options"].reasoning_format == "none"
    serve._load(parse("--verify-places", "0"), Path(model))
    assert seen["options"].held_sequences == 0
    assert seen["options"].draft == ""
    serve._load(parse("--draft", "lookup"), Path(model))
    assert seen["options"].draft == "lookup"
    serve._load(parse("--draft", model), Path(model))
    assert seen["options"].draft == model


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["--host", "0.0.0.0"], 2, "expected a loopback address"),
        (["--latency", "gpt-9"], 2, "got 'gpt-9'"),
        (["--max-streams", "0"], 2, "max_streams: expected at least 1"),
        (["--port", "70000"], 2, "port: expected at most 65535, got 70000"),
        (["--ready-fd", "9999"], 2, "ready-fd: expected an open file descriptor, got 9999"),
        (["--tls-key", "key.pem"], 2, "tls_key: only valid with a tls_cert"),
        (["--tls-cert", "/nowhere/cert.pem"], 2, "got No such file or directory at /nowhere/cert.pem"),
        (["--verify-sessions", "0"], 2, "scheduler: sessions: expected at least 1, got 0"),
        (["--verify-places", "-1"], 2, "held_sequences: expected at least 0, got -1"),
        (["--prefill-chunk", "0"], 2, "prefill_chunk: expected at least 1, got 0"),
    ],
)
def test_settings_that_cannot_be_are_said_in_one_line(
    words: list[str], status: int, text: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve.run(parse("--model", model, *words)) == status
    errors = capsys.readouterr().err
    assert text in errors
    assert errors.count("\n") == 1


def test_a_missing_draft_model_is_said_in_one_line(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.run(parse("--model", model, "--draft", "/nowhere/small.gguf")) == 1
    assert capsys.readouterr().err == "streamco serve: draft: expected a GGUF file, got none at /nowhere/small.gguf\n"


def test_a_missing_model_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.run(parse("--model", "/nowhere/model.gguf")) == 1
    assert capsys.readouterr().err == "streamco serve: model: expected a GGUF file, got none at /nowhere/model.gguf\n"


def test_a_model_that_cannot_be_loaded_is_said_in_one_line(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_args: object, _path: object) -> None:
        raise EngineError("model: expected a GGUF file, got an empty one")

    monkeypatch.setattr(serve, "_load", fail)
    assert serve.run(parse("--model", model)) == 1
    assert "got an empty one" in capsys.readouterr().err


def test_a_port_that_is_taken_is_said_in_one_line_and_the_engine_is_closed(model: str) -> None:
    with process(FAKE.format(mode="instant"), "--model", model, "--port", "0") as first:
        port = address_of(first).rpartition(":")[2]
        with process(FAKE.format(mode="instant"), "--model", model, "--port", port) as second:
            out, errors = second.communicate(timeout=30)
    assert second.returncode == 1
    assert out == "closed\n"
    assert errors.startswith(f"streamco serve: 127.0.0.1:{port}: ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize("words", [["--latency", "list"], ["--step-times", "list"]])
def test_profiles_are_listed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.run(parse(*words)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "--latency openai-gpt-4-0125-preview" in lines
    assert "--step-times llama2-70b-a100x4" in lines


@pytest.mark.model
def test_the_packaged_model_is_served_without_any_setting_but_the_port() -> None:
    with process(REAL, "--port", "0", "--threads", "1", "--context", "256", "--sequences", "1") as running:
        answer = ask(address_of(running))
        assert answer["usage"]["completion_tokens"] == 2
        running.terminate()
        assert running.wait(timeout=30) == 0


def test_a_part_goes_with_middle_and_a_whole_model_without(model: str, tmp_path: Path) -> None:
    part = tmp_path / "tiny.middle.gguf"
    part.write_bytes(b"GGUF streamco.part middle")
    serve._check_part(parse("--middle"), part)
    serve._check_part(parse(), Path(model))
    with pytest.raises(ConfigError, match="with --middle"):
        serve._check_part(parse(), part)
    with pytest.raises(ConfigError, match="got a file that isn't a GGUF file: see streamco split"):
        serve._check_part(parse("--middle"), Path(model))
    Path(model).write_bytes(b"GGUF general.architecture")
    with pytest.raises(ConfigError, match="got a whole one: see streamco split"):
        serve._check_part(parse("--middle"), Path(model))


@pytest.mark.parametrize("words", ["--room 64", "--row-costs 1:1", "--emulate-step 1,1"])
def test_options_of_a_split_server_need_middle(model: str, words: str) -> None:
    with pytest.raises(ConfigError, match="--middle"):
        serve._check_part(parse(*words.split()), Path(model))


@pytest.mark.parametrize("words", ["--latency openai-gpt-4-0125-preview", "--step-times x"])
def test_options_of_a_whole_model_do_not_go_with_middle(tmp_path: Path, words: str) -> None:
    part = tmp_path / "tiny.middle.gguf"
    part.write_bytes(b"GGUF streamco.part middle")
    with pytest.raises(ConfigError, match="whole model"):
        serve._check_part(parse("--middle", *words.split()), part)


def test_row_costs_and_imposed_times_are_read_and_wrong_ones_refused(model: str) -> None:
    assert serve._row_costs("1:0.02,64:0.03") == {1: 0.02, 64: 0.03}
    for text in ("1", "0:1", "1.5:1", "1:0", "1:x", "1:nan", ""):
        with pytest.raises(ConfigError, match="--row-costs"):
            serve._row_costs(text)
    for text in ("0.018", "1,2,3", "a,b", "inf,1"):
        with pytest.raises(ConfigError, match="--emulate-step"):
            serve._load_middle(parse("--middle", "--emulate-step", text), Path(model))
    with pytest.raises(ConfigError, match="session"):
        serve._load_middle(parse("--middle", "--verify-places", "0"), Path(model))
