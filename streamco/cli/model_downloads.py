"""GGUF files from a URL, kept in a folder of the cache: each in a folder of its own, by where it came from."""

from __future__ import annotations

import hashlib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, unquote, urlsplit

from streamco.engines.llamacpp.cache_dir import cache_folder, replaced_file
from streamco.errors import ConfigError, EndpointError

__all__ = ["download", "downloads", "find_download", "shown", "size_at"]

_MAX_BYTES = 1 << 40  # of a file of unknown size
_BLOCK = 1 << 20
_TIMEOUT = 30.0  # seconds without a byte
_MAGIC = b"GGUF"
_NO_HEAD = (401, 403, 405, 501)  # what servers answer that give a file and refuse to say how large it is


def downloads() -> list[Path]:
    """Return the files that came from URLs, by name."""
    found = (path for path in cache_folder("downloads").glob("*/*") if path.name.lower().endswith(".gguf"))
    return sorted(found, key=lambda path: (path.name, path))


def find_download(url: str) -> Path | None:
    """Return the file that came from this URL; None: it isn't there.

    Raises:
        ConfigError: the URL ends in no name of a GGUF file, or has a user name or a password.
    """
    path = _target(url)
    return path if path.is_file() else None


def shown(url: str) -> str:
    """Return a URL without what may be secret in it: user name, password and query."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def size_at(url: str) -> int | None:
    """Return the size of the file at a URL, in bytes; None: the server doesn't say.

    Raises:
        EndpointError: the server doesn't answer, or has no such file.
    """
    try:
        with _opened(url, method="HEAD") as response:
            return _length(response)
    except EndpointError as error:
        if isinstance(error.__cause__, HTTPError) and error.__cause__.code in _NO_HEAD:
            return None
        raise


def download(url: str, size: int | None) -> Path:
    """Download the file at a URL and return its path; a download that breaks off leaves nothing.

    Args:
        url: the URL.
        size: bytes that it must have; None: not known.

    Raises:
        ConfigError: the URL ends in no name of a GGUF file, or the file can't be written.
        EndpointError: the server doesn't answer, refuses or breaks off, or what came is no GGUF file or has another size.
    """
    target = _target(url)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _opened(url, method="GET") as response, replaced_file(target) as temporary, temporary.open("wb") as file:
            for block in _blocks(url, response, size):
                file.write(block)
    except OSError as error:
        raise ConfigError(f"{target}: expected to write it, got {error.strerror or error}") from error
    return target


def _blocks(url: str, response: Any, size: int | None) -> Iterator[bytes]:
    """Yield a body, checked.

    Raises:
        EndpointError: it is no GGUF file, has another size, or breaks off.
    """
    expected = _length(response) if size is None else size
    came = 0
    while block := _read(url, response):
        if not came and not block.startswith(_MAGIC):
            raise EndpointError(f"{shown(url)}: expected a GGUF file, got one that begins with {block[:4]!r}")
        came += len(block)
        if came > (_MAX_BYTES if expected is None else expected):
            break
        yield block
    if came != expected and (expected is not None or came > _MAX_BYTES):
        got = f"{came} bytes" if expected is not None and came < expected else "more"
        raise EndpointError(f"{shown(url)}: expected {expected or _MAX_BYTES} bytes, got {got}")


def _read(url: str, response: Any) -> bytes:
    try:
        block: bytes = response.read(_BLOCK)
    except (OSError, HTTPException) as error:
        raise EndpointError(f"{shown(url)}: expected a file, got {type(error).__name__}: {error}") from error
    return block


def _length(response: Any) -> int | None:
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isascii() and length.isdigit() else None


def _target(url: str) -> Path:
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ConfigError(f"{shown(url)}: expected no user name or password in the URL, got one")
    name = Path(unquote(parts.path)).name
    if not name.lower().endswith(".gguf") or name.startswith(".") or not name.isprintable():
        raise ConfigError(f"{shown(url)}: expected the URL of a GGUF file, got one that ends in {name!r}")
    try:
        return cache_folder("downloads") / _folder(parts) / name
    except OSError as error:
        raise ConfigError(f"cache: expected a folder that can be written, got {error.strerror or error}") from error


def _folder(parts: SplitResult) -> str:
    """Return the name of a file's folder: host, and a digest of where it lies there. Queries are left out: they may change each time."""
    digest = hashlib.sha256(f"{parts.scheme}://{parts.netloc}{parts.path}".encode()).hexdigest()
    return f"{parts.hostname}-{digest[:16]}"


@contextmanager
def _opened(url: str, *, method: str) -> Iterator[Any]:
    request = urllib.request.Request(url, method=method, headers={"User-Agent": "streamco"})  # noqa: S310  # is_url: http or https
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)  # noqa: S310
    except HTTPError as error:
        raise EndpointError(f"{shown(url)}: expected a file, got HTTP {error.code} {error.reason}") from error
    except (URLError, OSError, HTTPException) as error:
        raise EndpointError(f"{shown(url)}: expected a file, got {getattr(error, 'reason', None) or error}") from error
    with response:
        yield response
