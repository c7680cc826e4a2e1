from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

from streamco.cli import main as module
from streamco.cli.main import COMMANDS, main
from streamco.errors import AllEndpointsFailed, ConfigError, EndpointConnectError
from tests.cli.terminal import ROOT


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "streamco", *words], text=True, capture_output=True, cwd=ROOT, timeout=60, check=False)


def fake(monkeypatch: pytest.MonkeyPatch, outcome: object) -> None:
    """Let ``chat`` return or raise this."""
    command = ModuleType("streamco.cli.chat")

    def run_command(args: object) -> object:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(command, "add_arguments", lambda parser: None, raising=False)
    monkeypatch.setattr(command, "run", run_command, raising=False)
    monkeypatch.setitem(sys.modules, "streamco.cli.chat", command)


def test_help_names_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    for name, text in COMMANDS.items():
        assert name in done.stdout
        assert text.split(",")[0] in done.stdout


@pytest.mark.long("after the first case")
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_command_has_its_own_help(name: str) -> None:
    done = run(name, "--help")
    assert done.returncode == 0
    assert f"usage: streamco {name}" in done.stdout
    assert "--verbose" in done.stdout


def test_version_is_told() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "streamco")
    assert "compiled extensions" in done.stdout or "pure Python: " in done.stdout


@pytest.mark.parametrize("words", [(), ("nosuch",), ("chat", "--nosuch")])
def test_wrong_usage_exits_2(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 2
    assert "--help lists" in done.stderr


@pytest.mark.long("after the first case")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("chat", "--bugdet", "0.5"), "streamco chat: unknown option --bugdet: did you mean --budget?\n"),
        (("chat", "--nosuch=1"), "streamco chat: unknown option --nosuch\n"),
        (("caht", "--server", "m"), "streamco: unknown command caht: did you mean chat?\n"),
        (("models", "lsit"), "streamco models: unknown command lsit: did you mean list?\n"),
        (("models", "get", "m", "--yse"), "streamco models: unknown option --yse: did you mean --yes?\n"),
        (("chat", "--mode", "spculate"), "expected race, speculate, auto or split, got 'spculate': did you mean speculate?\n"),
        (("chat", "why", "so"), "streamco chat: expected nothing more, got 'so' (text of several words needs quotation marks)\n"),
    ],
)
def test_what_is_misspelt_gets_a_suggestion(words: tuple[str, ...], message: str) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_help_loads_no_command_and_nothing_heavy() -> None:
    script = (
        "import sys; sys.argv = ['streamco', '--help']\n"
        "from streamco.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'rich', 'prompt_toolkit', 'aiohttp', 'llama_cpp', 'numpy', 'uvloop', 'asyncio', 'streamco.cli.chat'}\n"
        "print(sorted(heavy & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], text=True, capture_output=True, cwd=ROOT, timeout=60, check=True)
    assert done.stderr.strip() == "[]"


def test_the_commands_exit_code_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, 7)
    assert main(["chat"]) == 7


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("budget: expected less"), 2),
        (EndpointConnectError("expected a connection, got none", endpoint="server"), 1),
        (AllEndpointsFailed({"server": EndpointConnectError("down")}), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_an_error_becomes_one_line_and_an_exit_code(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(monkeypatch, error)
    assert main(["chat"]) == code
    assert capsys.readouterr().err == ("" if code == 130 else f"streamco: {error}\n")


def test_vv_gives_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamco.cli.runtime.set_up_log", lambda verbosity: None)
    fake(monkeypatch, ConfigError("budget: expected less"))
    with pytest.raises(ConfigError):
        main(["chat", "-vv"])


def test_a_reader_that_goes_away_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", open("/dev/null", "w"))  # noqa: SIM115, PTH123
    fake(monkeypatch, BrokenPipeError())
    assert main(["chat"]) == 0


def test_a_missing_extra_is_named() -> None:
    script = (
        "import sys\n"
        "sys.modules['rich'] = sys.modules['prompt_toolkit'] = None\n"
        "sys.argv = ['streamco', 'chat', '--server', 'm', '--base-url', 'http://127.0.0.1:9/v1', '--no-device']\n"
        "sys.stdin.isatty = sys.stdout.isatty = lambda: True\n"
        "from streamco.cli.main import main\n"
        "sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        text=True,
        capture_output=True,
        cwd=ROOT,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin", "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 2
    assert "pip install 'streamco[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_module_says_what_it_offers() -> None:
    assert module.__all__ == ["COMMANDS", "build_parser", "main"]
