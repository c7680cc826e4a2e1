from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from streamco.cli.completion import SHELLS, completion_script, run
from streamco.cli.main import COMMANDS, build_parser
from streamco.errors import ConfigError


def complete(script: Path, *words: str) -> set[str]:
    """Return what bash offers for the last of these words."""
    if shutil.which("bash") is None:
        pytest.skip("no bash on this machine")
    typed = " ".join(f"'{word}'" for word in words)
    lines = f"source {script}; COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _shtab_streamco; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", lines], text=True, capture_output=True, timeout=60, check=True)
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "streamco.bash"
    path.write_text(completion_script("bash"), encoding="utf-8")
    return path


def test_bash_completes_commands(bash_script: Path) -> None:
    assert complete(bash_script, "streamco", "c") == {name for name in COMMANDS if name.startswith("c")}


def test_bash_completes_the_options_of_a_command(bash_script: Path) -> None:
    assert complete(bash_script, "streamco", "chat", "--dev") == {"--device", "--device-model"}
    assert "--model" in complete(bash_script, "streamco", "serve", "--")


def test_bash_completes_choices(bash_script: Path) -> None:
    assert complete(bash_script, "streamco", "chat", "--mode", "s") == {"speculate", "split"}


def test_bash_completes_the_names_of_files(bash_script: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.touch()
    assert complete(bash_script, "streamco", "chat", "--device", f"{tmp_path}/mo") == {str(model)}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser, _ = build_parser(["completion"])
    assert run(parser.parse_args(["completion", shell])) == 0
    assert capsys.readouterr().out == completion_script(shell) + "\n", "no script has control characters, which would be left out"


def test_fish_is_offered_commands_options_and_choices() -> None:
    lines = [line for line in completion_script("fish").splitlines() if line.startswith("complete -c streamco ")]
    assert any(" -a chat " in line for line in lines)
    assert any("using chat'" in line and "-l budget" in line for line in lines)
    assert any("-l mode" in line and "speculate" in line for line in lines)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(ConfigError, match="streamco\\[cli\\]"):
        completion_script("bash")
