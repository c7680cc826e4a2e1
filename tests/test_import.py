"""`import streamco` stays light."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import msgspec
import pytest

import streamco
from tests.test_documented_imports import PUBLIC

ROOT = Path(__file__).parents[1]
HEAVY = ("aiohttp", "websockets", "llama_cpp", "numpy", "simpy", "rich", "prompt_toolkit", "uvloop", "asyncio", "msgspec")


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_importing_the_package_pulls_in_nothing_heavy() -> None:
    loaded = run(f"import sys, streamco; print([name for name in {HEAVY!r} if name in sys.modules])")
    assert loaded.strip() == "[]"


def test_the_client_itself_waits_with_aiohttp_and_llama_until_they_are_needed() -> None:
    loaded = run("import sys, streamco; streamco.Client; print([n for n in ('aiohttp', 'llama_cpp', 'simpy', 'rich') if n in sys.modules])")
    assert loaded.strip() == "[]"


def test_the_servers_can_be_imported_with_an_aiohttp_that_has_no_keys_of_a_request() -> None:
    loaded = run("from aiohttp import web; del web.RequestKey; import streamco.server.app, streamco.proxy.app; print('loaded')")
    assert loaded.strip() == "loaded"


def test_no_msgspec_is_allowed_with_errors_that_are_no_value_errors() -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (oldest,) = [each.partition(">=")[2] for each in needed if each.startswith("msgspec")]
    assert tuple(map(int, oldest.split("."))) >= (0, 21), "before 0.21 a damaged frame of a verifier ends its reader"
    assert issubclass(msgspec.DecodeError, ValueError)


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_there(module: str) -> None:
    home = import_module(module)
    assert set(home.__all__) <= set(run(f"import {module}; print(*dir({module}))").split()), "before any is used"
    assert [name for name in home.__all__ if getattr(home, name) is None] == []


@pytest.mark.parametrize("module", [name.partition(".")[2] for name in PUBLIC if name.count(".") == 1])
def test_what_is_beside_the_main_names_is_loaded_with_its_first_use(module: str) -> None:
    assert run(f"import streamco; print(streamco.{module}.__name__)").strip() == f"streamco.{module}"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Clinet'"):
        _ = streamco.Clinet
