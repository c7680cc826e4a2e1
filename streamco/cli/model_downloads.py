"""GGUF files from a URL, kept in a folder of the cache."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit

from streamco.engines.llamacpp.cache_dir import cache_folder, replaced_file
from streamco.errors import ConfigError, EndpointError

__all__ = ["download", "downloads", "find_download", "size_at"]

_BLOCK = 1 << 20
_TIMEOUT = 30.0  # seconds without a byte
_MAGIC = b"GGUF"


def downloads() -> list[Path]:
    """Return the files that came from URLs, by name."""
    return sorted(cache_folder("downloads").glob("*.gguf"))


def find_download(url: str) -> Path | None:
    """Return the file that came from a URL of this name; None: it isn't there."""
    path = _target(url)
    return path if path.is_file() else None


def size_at(url: str) -> int | None:
    """Return the size of the file at a URL, in bytes; None: the server doesn't say.

    Raises:
        EndpointError: the server doesn't answer, or refuses.
    """
    with _opened(url, method="HEAD") as response:
        length = response.headers.get("Content-Length", "")
    return int(length) if length.isascii() and length.isdigit() else None


def download(url: str) -> Path:
    """Download the file at a URL and return its path; a download that breaks off leaves nothing.

    Raises:
        ConfigError: the URL ends in no name of a GGUF file.
        EndpointError: the server doesn't answer, refuses or breaks off, or what came is no GGUF file.
    """
    target = _target(url)
    with _opened(url, method="GET") as response, replaced_file(target) as temporary:
        length = response.headers.get("Content-Length", "")
        came = 0
        with temporary.open("wb") as file:
            while block := response.read(_BLOCK):
                if not came and not block.startswith(_MAGIC):
                    raise EndpointError(f"{url}: expected a GGUF file, got one that begins with {block[:4]!r}")
                came += file.write(block)
        if length.isdigit() and came != int(length):
            raise EndpointError(f"{url}: expected {length} bytes, got {came}")
    return target


def _target(url: str) -> Path:
    name = Path(unquote(urlsplit(url).path)).name
    if not name.lower().endswith(".gguf") or name.startswith("."):
        raise ConfigError(f"{url}: expected the URL of a GGUF file, got one that ends in {name!r}")
    return cache_folder("downloads") / name


@contextmanager
def _opened(url: str, *, method: str) -> Iterator[Any]:
    request = urllib.request.Request(url, method=method, headers={"User-Agent": "streamco"})  # noqa: S310  # is_url: http or https
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:  # noqa: S310
            yield response
    except HTTPError as error:
        raise EndpointError(f"{url}: expected a file, got HTTP {error.code} {error.reason}") from error
    except (URLError, OSError, HTTPException) as error:  # the last one: an answer that breaks off
        raise EndpointError(f"{url}: expected a file, got {getattr(error, 'reason', None) or error}") from error
