"""The blocks of docs/frontends.md parse, and name options that exist. Where the programs are installed, they know these options."""

from __future__ import annotations

import json
import mmap
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from streamco.endpoints.base import Request
from streamco.proxy.config import MODEL
from streamco.proxy.from_config import build_options
from streamco.proxy.tasks import TaskRules
from tests.recipes.page import ADDRESS, COMMON, PAGE, Block, block, blocks, exports, proxy_config, sections, toml, typed
from tests.support.programs import PROGRAMS, command_of, folder_of

KNOWN = {
    "Open WebUI": {"OPENAI_API_BASE_URL", "OPENAI_API_KEY", "ENABLE_OLLAMA_API", "DEFAULT_MODEL_PARAMS"},
    "LibreChat": {"version", "endpoints", "custom", "name", "apiKey", "baseURL", "headers", "models", "default", "fetch"}
    | {"titleConvo", "titleModel", "titleEndpoint"},
    "aider": {"OPENAI_API_BASE", "OPENAI_API_KEY", "name", "edit_format", "weak_model_name", "extra_params", "extra_headers"},
    "Continue": {"name", "version", "schema", "models", "provider", "model", "apiBase", "apiKey", "roles", "capabilities"},
    "Codex CLI": {"model", "model_provider", "model_context_window", "web_search", "model_providers", "name", "base_url", "wire_api"},
    "Claude Code": {"ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"}
    | {"CLAUDE_CODE_MAX_CONTEXT_TOKENS", "CLAUDE_CODE_MAX_OUTPUT_TOKENS", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"},
}
"""The options that the programs have and the page names, by section."""

OURS = {"streamco", "x-streamco-task"}  # names that the user gives to things, and the proxy's header


def decoded(block: Block) -> Any:
    """The settings of a block."""
    match block.language:
        case "toml":
            return toml(block.text)
        case "yaml":
            return yaml.safe_load(block.text)
    return exports(block.text)


def option_names(value: Any) -> Iterator[str]:
    """The names in nested settings."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from option_names(inner)
    if isinstance(value, list):
        for inner in value:
            yield from option_names(inner)


def texts(value: Any) -> Iterator[str]:
    """The texts in nested settings."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from texts(inner)
    if isinstance(value, str):
        yield value


def settings() -> dict[str, Any]:
    """LibreChat's settings on the page."""
    found = yaml.safe_load(block("LibreChat", "librechat.yaml"))
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("shown", [each for each in blocks() if each.section != COMMON], ids=lambda each: f"{each.section}: {each.file}")
def test_a_block_names_options_that_exist(shown: Block) -> None:
    assert set(option_names(decoded(shown))) - OURS <= KNOWN[shown.section]


@pytest.mark.parametrize("section", KNOWN)
def test_a_section_gives_the_proxys_address_and_the_models_name(section: str) -> None:
    given = [text for each in blocks() if each.section == section for text in texts(decoded(each))]
    assert {text for text in given if text.startswith("http")} <= {ADDRESS, f"{ADDRESS}/v1"}
    assert any(text.startswith(ADDRESS) for text in given)
    assert section == "Open WebUI" or any(text.endswith(MODEL) for text in given)  # it asks for the list of models


def test_the_page_has_a_section_for_each_program_and_says_what_it_was_run_with() -> None:
    parts = sections()
    assert [COMMON, *KNOWN] == list(parts)
    overview = PAGE.read_text(encoding="utf-8").split("\n## ")[0]
    for name, program in PROGRAMS.items():
        assert program.version in overview + parts[name], f"{name}: expected {program.version}"
    for name in KNOWN:
        assert all(f"**{part}.**" in parts[name] for part in ("What you see", "What it sends", "Limits")), name


def test_the_proxys_file_is_read_and_recognises_background_tasks() -> None:
    config = proxy_config()
    assert config.proxy.host == "127.0.0.1"
    assert f"http://{config.proxy.host}:{config.proxy.port}" == ADDRESS
    options = build_options(config, environ={})
    rules = TaskRules(options.task_patterns, takes_header=options.takes_tasks)
    assert rules.name_of(Request(messages=[{"role": "user", "content": "### Task:\nGenerate a title."}]), {}) == "recognised"
    (headers,) = [each["headers"] for each in settings()["endpoints"]["custom"] if "headers" in each]
    assert rules.name_of(Request(messages=[{"role": "user", "content": "Hi"}]), headers) == "title"
    assert typed(block(COMMON, "bash"), "streamco") == ["proxy", "--config", "proxy.toml"]


def test_librechats_titles_come_from_an_endpoint_of_the_file() -> None:
    chats, titles = settings()["endpoints"]["custom"]
    assert chats["titleEndpoint"] == titles["name"]
    assert chats["titleModel"] in titles["models"]["default"]


def files_of(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and path.stat().st_size)


def words_in(folder: Path, words: set[str]) -> set[str]:
    """Those of the words that are in a file below the folder."""
    missing = {word.encode() for word in words}
    for path in files_of(folder):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            missing -= {word for word in missing if data.find(word) >= 0}
        if not missing:
            break
    return words - {word.decode() for word in missing}


@pytest.mark.peer
@pytest.mark.parametrize("section", PROGRAMS)
def test_the_program_has_the_options(section: str) -> None:
    command_of(section)
    package = PROGRAMS[section].package
    scope = {"aider-chat": "aider", "open-webui": "open_webui"}.get(package, package.split("/")[0])
    (home,) = [path for path in folder_of(PROGRAMS[section]).rglob(scope) if path.parent.name in {"site-packages", "node_modules"}]
    assert words_in(home, KNOWN[section]) == KNOWN[section]


@pytest.mark.peer
def test_librechats_schema_takes_its_settings_and_drops_none() -> None:
    command_of("LibreChat")
    script = Path(__file__).parent / "check_librechat.cjs"
    words = ["node", str(script), str(folder_of(PROGRAMS["LibreChat"])), json.dumps(settings())]
    found = json.loads(subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout)
    assert found["problems"] == []
    for given, kept in zip(settings()["endpoints"]["custom"], found["kept"]["endpoints"]["custom"], strict=True):
        assert given.items() <= kept.items()
