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
            await asyncio.to_thread(download, f"{server.url}/small.gguf", None)
    assert downloads() == []
    assert not [path for path in folder.glob("**/*") if path.is_file()]


@pytest.mark.parametrize(("size", "got"), [(100, "expected 100 bytes, got 9 bytes"), (5, "expected 5 bytes, got more")])
async def test_another_size_than_the_one_that_was_agreed_to_is_an_error(size: int, got: str) -> None:
    async with ScriptedServer(ScriptedResponse(steps=[b"GGUF four"])) as server:
        with pytest.raises(EndpointError, match=got):
            await asyncio.to_thread(download, f"{server.url}/small.gguf", size)
        assert (await asyncio.to_thread(download, f"{server.url}/small.gguf", 9)).read_bytes() == b"GGUF four"
    assert len(downloads()) == 1


async def test_a_server_that_does_not_say_how_large_a_file_is_gives_it_all_the_same() -> None:
    async with ScriptedServer(ScriptedResponse(status=403, steps=[b"no"])) as server:
        assert await asyncio.to_thread(size_at, f"{server.url}/small.gguf") is None


async def test_a_server_that_is_not_there_is_an_error() -> None:
    async with ScriptedServer() as server:
        url = f"{server.url}/small.gguf"
    with pytest.raises(EndpointError, match="expected a file, got"):
        await asyncio.to_thread(size_at, url)
    with pytest.raises(EndpointError, match="expected a file, got"):
        await asyncio.to_thread(download, url, 9)


@pytest.mark.parametrize("path", ["", "/", "/index.html", "/.gguf", "/x.gguf/y", "/a%00.gguf"])
def test_a_url_without_the_name_of_a_model_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="expected the URL of a GGUF file"):
        find_download(f"http://127.0.0.1:9{path}")


def test_a_name_leads_to_no_other_folder(folder: Path) -> None:
    assert find_download("http://127.0.0.1:9/..%2F..%2Fa.gguf") is None
    with pytest.raises(EndpointError):
        download("http://127.0.0.1:9/..%2F..%2Fa.gguf", None)
    assert not (folder.parent.parent / "a.gguf").exists()
