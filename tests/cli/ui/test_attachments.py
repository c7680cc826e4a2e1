"""Files that are sent with prompts."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from streamco.cli.ui.attachments import (
    MAX_TEXT,
    TYPED_AT,
    Attachment,
    Prompt,
    attach,
    parse_typed,
    read_attachment,
    size_text,
    without_marks,
)
from streamco.errors import ConfigError

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 8


def test_a_text_stands_in_the_prompt_under_its_name_alone(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("print(1)\n")
    prompt = parse_typed(f"{TYPED_AT}{tmp_path}/main.py explain\nshortly")
    assert prompt.text == "main.py:\n```\nprint(1)\n```\nexplain\nshortly"
    assert [(file.name, file.size) for file in prompt.files] == [("main.py", 9)]


def test_the_fence_is_longer_than_any_in_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("````\ncode\n````")
    assert parse_typed(f"{TYPED_AT}{tmp_path}/a.md").text == "a.md:\n`````\n````\ncode\n````\n`````"


def test_a_path_with_spaces_stands_in_quotation_marks(tmp_path: Path) -> None:
    (tmp_path / "my notes.txt").write_text("buy milk")
    assert parse_typed(f'{TYPED_AT}"{tmp_path}/my notes.txt" what?').text == "my notes.txt:\n```\nbuy milk\n```\nwhat?"


def test_an_image_goes_beside_the_text(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(PNG)
    prompt = parse_typed(f"what is it?\n{TYPED_AT}{tmp_path}/cat.png")
    assert prompt.text == "what is it?"
    assert prompt.images == (f"data:image/png;base64,{base64.b64encode(PNG).decode()}",)


@pytest.mark.parametrize(("begin", "kind"), [(b"\xff\xd8\xff\xe0", "jpeg"), (b"GIF89a", "gif"), (b"RIFF\x01\x00\x00\x00WEBPVP8 ", "webp")])
def test_images_are_known_by_their_first_bytes(begin: bytes, kind: str, tmp_path: Path) -> None:
    (tmp_path / "picture").write_bytes(begin + b"\0")
    assert read_attachment(tmp_path / "picture").image.startswith(f"data:image/{kind};base64,")


@pytest.mark.parametrize("text", ["@main.py explain", "mail me@home.org", "one\n@two", "@", "@ home"])
def test_an_at_that_was_not_typed_at_a_lines_beginning_is_a_text(text: str) -> None:
    assert parse_typed(text) == Prompt(text, text)


def test_two_of_them_begin_a_line_with_one() -> None:
    for begin in (f"{TYPED_AT}@", f"{TYPED_AT}{TYPED_AT}"):
        assert parse_typed(f"{begin}home, at last").text == "@home, at last"
    assert parse_typed(f"{TYPED_AT} home").text == "@ home"
    assert parse_typed(f"to {TYPED_AT}home").text == "to @home"


def test_marks_are_taken_out_of_what_nobody_typed() -> None:
    assert parse_typed(without_marks(f"{TYPED_AT}/etc/passwd")).files == ()


def test_what_cannot_be_sent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nosuch: expected a file, got nothing there; to begin a line with @, write two"):
        parse_typed(f"{TYPED_AT}{tmp_path}/nosuch")
    with pytest.raises(ConfigError, match="expected a file, got a folder"):
        read_attachment(tmp_path)
    with pytest.raises(ConfigError, match="expected a file, got something else"):
        read_attachment(Path("/dev/zero"))
    (tmp_path / "a.bin").write_bytes(b"\xff\xfe\0")
    with pytest.raises(ConfigError, match=r"a\.bin: neither text \(UTF-8\) nor an image"):
        read_attachment(tmp_path / "a.bin")
    (tmp_path / "nul.txt").write_bytes(b"a\0b")
    with pytest.raises(ConfigError, match="neither text"):
        read_attachment(tmp_path / "nul.txt")
    with pytest.raises(ConfigError, match="expected a file, got nothing there"):
        parse_typed(f"{TYPED_AT}~nosuchuser/file")
    with pytest.raises(ConfigError, match="expected a file, got nothing there"):
        parse_typed(f"{TYPED_AT}{'x' * 5000}")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_of_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0)
    with pytest.raises(ConfigError, match="expected a file that can be read, got Permission denied"):
        read_attachment(tmp_path / "secret")


def test_a_text_may_have_one_mebibyte_alone_and_with_others(tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    path.write_bytes(b"x" * MAX_TEXT)
    file = read_attachment(path)
    assert file.size == MAX_TEXT
    with pytest.raises(ConfigError, match=r"files: expected at most 1 MiB of text, got 1\.0 MB"):
        attach(Prompt("a", "a", files=(Attachment("b", 1, "b"),)), [file])
    path.write_bytes(b"x" * (MAX_TEXT + 1))
    with pytest.raises(ConfigError, match=r"large\.txt: expected at most 1 MiB of text, got 1\.0 MB"):
        read_attachment(path)


def test_attached_files_go_before_the_prompt(tmp_path: Path) -> None:
    image = Attachment("a.png", 3, image="data:image/png;base64,AAAA")
    prompt = attach(Prompt("why?", "why?"), [Attachment("a.py", 8, "print(1)"), image])
    assert prompt.text == "a.py:\n```\nprint(1)\n```\n\nwhy?"
    assert (prompt.typed, prompt.images) == ("why?", (image.image,))


@pytest.mark.parametrize(
    ("size", "text"), [(12, "12 bytes"), (1024, "1.0 kB"), (5 << 20, "5.0 MB"), (1_117_320_768, "1.0 GB"), (3 << 30, "3.0 GB")]
)
def test_sizes_are_read_by_people(size: int, text: str) -> None:
    assert size_text(size) == text
