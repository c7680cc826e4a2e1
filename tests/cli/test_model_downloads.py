"""Files from URLs: whole, of the right kind, or not at all."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamco.cli.model_downloads import download, downloads, find_download, size_at
from streamco.errors import ConfigError, EndpointError
from streamco.testing import ScriptedResponse, ScriptedServer
from streamco.testing.responses import Cut


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "streamco" / "downloads"


@pytest.mark.parametrize(
    ("response", "complaint"),
    [
        (ScriptedResponse(steps=[b"<html>not found</html>"]), "expected a GGUF file, got one that begins with b'<htm'"),
        (ScriptedResponse(status=404, steps=[b"no"]), "expected a file, got HTTP 404"),
        (ScriptedResponse(steps=[b"GGUF and not all", Cut()]), "expected a file, got IncompleteRead"),
    ],
)
async def test_half_a_file_or_another_one_leaves_nothing(response: ScriptedResponse, complaint: str, folder: Path) -> None:
    async with ScriptedServer(response) as server:
        with pytest.raises(EndpointError, match=complaint):
            await asyncio.to_thread(download, f"{server.url}/small.gguf")
    assert downloads() == []
    assert not list(folder.glob("*"))


async def test_a_server_that_is_not_there_is_an_error() -> None:
    async with ScriptedServer() as server:
        url = f"{server.url}/small.gguf"
    for action in (download, size_at):
        with pytest.raises(EndpointError, match="expected a file, got"):
            await asyncio.to_thread(action, url)


@pytest.mark.parametrize("path", ["", "/", "/index.html", "/.gguf", "/x.gguf/y"])
def test_a_url_without_the_name_of_a_model_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="expected the URL of a GGUF file"):
        find_download(f"http://127.0.0.1:9{path}")


def test_a_name_leads_to_no_other_folder(folder: Path) -> None:
    assert find_download("http://127.0.0.1:9/..%2F..%2Fa.gguf") is None
    with pytest.raises(EndpointError):
        download("http://127.0.0.1:9/..%2F..%2Fa.gguf")
    assert not (folder.parent.parent / "a.gguf").exists()
