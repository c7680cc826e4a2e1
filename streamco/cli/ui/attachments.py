"""Files that are sent with a prompt: text files inside the prompt, and images alongside it.

At a terminal a line that begins with ``@`` names a file, but only if the ``@`` was typed: text that was pasted, piped or loaded may contain
such a line, too, and must not cause a file to be sent. The line editor therefore replaces a typed ``@`` with ``TYPED_AT``, and all other
text that becomes a prompt goes through ``without_marks``.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from streamco.errors import ConfigError, shorten

__all__ = [
    "MAX_TEXT",
    "TYPED_AT",
    "Attachment",
    "Prompt",
    "attach",
    "names_untyped_file",
    "parse_typed",
    "read_attachment",
    "shown",
    "size_text",
    "without_marks",
]

TYPED_AT = "\ue040"  # in the private use area, so no ordinary text has it
MAX_TEXT = 1 << 20  # bytes of all text files of a prompt together
MAX_IMAGE = 10 << 20  # bytes of all its images together
_IMAGES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF87a": "image/gif", b"GIF89a": "image/gif"}
_NAMED = re.compile(rf'{TYPED_AT}(?:"([^"\n]+)"|(\S+))(.*)', re.DOTALL)
_UNITS = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB"))


class Attachment(Struct, frozen=True):
    """A file that was read.

    Args:
        name: the file's name, without its folders, which are private.
        size: its size in bytes.
        text: its text, unless it is an image.
        image: the image as a ``data:`` URL, or "" for a text file.
    """

    name: str
    size: int
    text: str = ""
    image: str = ""


class Prompt(Struct, frozen=True):
    """A prompt with its files.

    Args:
        typed: the text as typed, with the marks of files, so that it can be edited again.
        text: the text to send, including the text files.
        images: ``data:`` URLs to send with it.
        files: all files, in order.
        attached: the files that no line of the prompt names.
    """

    typed: str
    text: str
    images: tuple[str, ...] = ()
    files: tuple[Attachment, ...] = ()
    attached: tuple[Attachment, ...] = ()


def without_marks(text: str) -> str:
    """Return the text without marks of typed ``@``, so that none of its lines names a file."""
    return text.replace(TYPED_AT, "")


def shown(text: str) -> str:
    """Return a typed text as it is displayed."""
    return text.replace(TYPED_AT, "@")


def names_untyped_file(text: str) -> bool:
    """Return True if a line would name a file if its ``@`` had been typed. The user may wonder why that file isn't sent."""
    words = (row[1:].partition(" ")[0] for row in text.split("\n") if row.startswith("@"))
    with suppress(OSError, ValueError, RuntimeError):
        return any(word and Path(word).expanduser().is_file() for word in words)
    return False


def size_text(size: int) -> str:
    """Return a size in bytes as text, such as ``1.1 GB``."""
    return next((f"{size / unit:.1f} {name}" for unit, name in _UNITS if size >= unit), f"{size} bytes")


def read_attachment(path: Path) -> Attachment:
    """Read a text file or an image.

    Raises:
        ConfigError: the file doesn't exist, can't be read, is too large, or is neither text nor an image.
    """
    if not path.is_file():
        got = "a folder" if path.is_dir() else "something else" if path.exists() else "nothing there"
        raise ConfigError(f"{path}: expected a file, got {got}")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_IMAGE + 1)
    except OSError as error:
        raise ConfigError(f"{path}: expected a file that can be read, got {error.strerror or error}") from error
    kind = _image_type(data)
    size = max(len(data), path.stat().st_size)
    if kind is not None:
        _check_size(f"{path}: ", size, MAX_IMAGE, "of an image")
        return Attachment(path.name, size, image=f"data:{kind};base64,{base64.b64encode(data).decode()}")
    _check_size(f"{path}: ", size, MAX_TEXT, "of text")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ConfigError(f"{path}: neither text (UTF-8) nor an image (PNG, JPEG, GIF or WebP)")
    return Attachment(path.name, size, text=text.replace("\r\n", "\n"))


def _image_type(data: bytes) -> str | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for begin, kind in _IMAGES.items() if data.startswith(begin)), None)


def _check_size(where: str, size: int, most: int, what: str) -> None:
    if size > most:
        raise ConfigError(f"{where}expected at most {most >> 20} MiB {what}, got {size_text(size)}")


def parse_typed(line: str) -> Prompt:
    """Parse a typed prompt, with the files that its lines name as ``@PATH``. The rest of such a line stays text.

    A path with spaces needs quotation marks: ``@"my notes.txt"``. A line that is typed with ``@@`` at its beginning is text with one ``@``.

    Raises:
        ConfigError: a file can't be sent.
    """
    parts: list[str] = []
    files: list[Attachment] = []
    for row in line.split("\n"):
        named = None if row.startswith((f"{TYPED_AT}{TYPED_AT}", f"{TYPED_AT}@")) else _NAMED.fullmatch(row)
        if named is None:
            parts.append(shown(row[1:] if row.startswith(TYPED_AT) and row[1:2] in {TYPED_AT, "@"} else row))
            continue
        files.append(_read_named(shown(named[1] or named[2])))
        parts += [part for part in (_block(files[-1]), shown(named[3]).strip()) if part]
    _check_sizes(files)
    return Prompt(line, "\n".join(parts).strip(), tuple(each.image for each in files if each.image), tuple(files))


def _read_named(path: str) -> Attachment:
    try:
        return read_attachment(Path(path).expanduser())
    except ConfigError as error:
        raise ConfigError(f"{error}; to begin a line with @, write two") from error
    except (RuntimeError, ValueError, OSError):  # no such home folder, or not a possible file name
        raise ConfigError(f"{shorten(path)}: expected a file, got nothing there; to begin a line with @, write two") from None


def attach(prompt: Prompt, files: Sequence[Attachment]) -> Prompt:
    """Return the prompt with additional files, which are sent before it.

    Raises:
        ConfigError: the files together are too large.
    """
    all_files = (*files, *prompt.files)
    _check_sizes(all_files)
    text = "\n\n".join([*filter(None, map(_block, files)), prompt.text])
    images = tuple(each.image for each in all_files if each.image)
    return Prompt(prompt.typed, text, images, all_files, tuple(files))


def _check_sizes(files: Iterable[Attachment]) -> None:
    _check_size("files: ", sum(each.size for each in files if not each.image), MAX_TEXT, "of text")
    _check_size("files: ", sum(each.size for each in files if each.image), MAX_IMAGE, "of images")


def _block(file: Attachment) -> str:
    """Return a text file as a part of a prompt: its name, and its text as a Markdown code block. Return "" for an image."""
    if file.image:
        return ""
    longest = max((len(ticks) for ticks in re.findall("`+", file.text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{file.name}:\n{fence}\n{file.text.rstrip()}\n{fence}"
