"""Names of models, the hub's cache, and a mirror of the hub on the loopback."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from streamco.endpoints import model_files
from streamco.endpoints.device import DeviceEndpoint
from streamco.endpoints.model_files import HubName, cached_models, choose_file, fetch, file_of, find_cached, look_up, parse_hub_name
from streamco.errors import ConfigError, EndpointError

REPO = "org/some-GGUF"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {"some-Q4_K_M.gguf": b"GGUF four", "some-Q8_0.gguf": b"GGUF eight", "README.md": b"text"}


@contextmanager
def mirror(files: dict[str, bytes], *, digests: dict[str, str] | None = None) -> Iterator[str]:
    """A hub with one repository."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(has_body=False)

        def do_GET(self) -> None:
            self.answer(has_body=True)

        def answer(self, *, has_body: bool) -> None:
            path = self.path.split("?")[0]
            name = path.removeprefix(f"/{REPO}/resolve/main/")
            if path in {f"/api/models/{REPO}", f"/api/models/{REPO}/revision/main"}:
                listed = [{"rfilename": each, "size": len(data), "lfs": digest_of(each, data)} for each, data in files.items()]
                self.send(200, json.dumps({"id": REPO, "sha": COMMIT, "siblings": listed}).encode(), {}, has_body=has_body)
            elif name in files:
                headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(files[name]).hexdigest()}"'}
                self.send(200, files[name], headers, has_body=has_body)
            else:
                self.send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, has_body=has_body)

        def send(self, status: int, body: bytes, headers: dict[str, str], *, has_body: bool) -> None:
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(body)), "Content-Type": "application/json"}.items():
                self.send_header(key, value)
            self.end_headers()
            if has_body:
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    def digest_of(name: str, data: bytes) -> dict[str, Any]:
        return {"size": len(data), "sha256": (digests or {}).get(name) or hashlib.sha256(data).hexdigest(), "pointerSize": 100}

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("text", "repo", "quant"),
    [("hf:a/b", "a/b", None), ("hf:Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M", "Qwen/Qwen2.5-1.5B-Instruct-GGUF", "Q4_K_M")],
)
def test_a_name_has_a_repository_and_perhaps_a_format(text: str, repo: str, quant: str | None) -> None:
    assert parse_hub_name(text) == HubName(repo, quant)
    assert str(HubName(repo, quant)) == text


@pytest.mark.parametrize("text", ["a/b", "hf:", "hf:a", "hf:a/b/c", "hf:../b", "hf:a/b:", "hf:a/b:c:d", "hf:a/b?x"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a name like hf:org/repo:Q4_K_M"):
        parse_hub_name(text)


@pytest.mark.parametrize(
    ("files", "quant", "chosen"),
    [
        (["a-Q8_0.gguf", "a-Q4_K_M.gguf"], None, "a-Q4_K_M.gguf"),
        (["a-Q8_0.gguf", "a-Q4_K_M.gguf"], "q8_0", "a-Q8_0.gguf"),
        (["a.gguf", "mmproj-a.gguf", "README.md"], None, "a.gguf"),
        (["x/a.Q4_0.gguf", "a-Q4_0_4_4.gguf"], "Q4_0", "x/a.Q4_0.gguf"),
    ],
)
def test_a_file_is_chosen_by_its_format(files: list[str], quant: str | None, chosen: str) -> None:
    assert choose_file(files, HubName("a/b", quant)) == chosen


@pytest.mark.parametrize(
    ("files", "quant", "complaint"),
    [
        (["a-Q8_0.gguf"], "Q4_0", "expected a GGUF file of that format, got a-Q8_0.gguf"),
        (["README.md"], None, "got none"),
        (["a-Q8_0.gguf", "a-Q6_K.gguf"], None, "expected one GGUF file, got a-Q6_K.gguf, a-Q8_0.gguf; name a format"),
        (["a-Q8_0-00001-of-00002.gguf", "a-Q8_0-00002-of-00002.gguf"], "Q8_0", "expected a model in one file, got 2 parts"),
        ([f"{number}.gguf" for number in range(20)], None, "and 8 more"),
    ],
)
def test_no_file_or_several_is_an_error(files: list[str], quant: str | None, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        choose_file(files, HubName("a/b", quant))


def test_a_model_is_fetched_once_and_found(tmp_path: Path) -> None:
    name = HubName(REPO)
    assert find_cached(name, tmp_path) is None
    with pytest.raises(ConfigError, match=f"streamco models get hf:{REPO} downloads it"):
        file_of(f"hf:{REPO}", tmp_path)
    with mirror(FILES) as url:
        file = look_up(name, url)
        assert (file.file, file.size) == ("some-Q4_K_M.gguf", 9)
        path = fetch(file, cache=tmp_path, endpoint=url)
        other = fetch(look_up(HubName(REPO, "Q8_0"), url), cache=tmp_path, endpoint=url)
    assert path.read_bytes() == FILES["some-Q4_K_M.gguf"]
    assert model_files.sha256_of(path) == file.sha256
    assert [(each.repo, each.file, each.size) for each in cached_models(tmp_path)] == [
        (REPO, "some-Q4_K_M.gguf", 9),
        (REPO, "some-Q8_0.gguf", 10),
    ]
    assert file_of(f"hf:{REPO}", tmp_path).resolve() == path.resolve()
    assert file_of(f"hf:{REPO}:Q8_0", tmp_path).resolve() == other.resolve()
    again = path.parent.parent / ("f" * 40) / path.name  # another revision with the same file
    again.parent.mkdir()
    again.symlink_to(path.resolve())
    four, eight = cached_models(tmp_path)
    assert set(four.links) == {path, again}
    assert four.data == (path.resolve(),)
    assert (four.name, eight.name) == (f"hf:{REPO}:Q4_K_M", f"hf:{REPO}:Q8_0")
    model_files.remove([*four.links, *four.data])
    assert [each.file for each in cached_models(tmp_path)] == ["some-Q8_0.gguf"]
    with pytest.raises(ConfigError, match=f"not in the cache, which has only hf:{REPO}:Q8_0 from this repository; streamco models get"):
        file_of(f"hf:{REPO}", tmp_path)
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(b"GGUF mine")
    eight.path.unlink()
    eight.path.symlink_to(mine)
    [linked] = cached_models(tmp_path)
    model_files.remove([*linked.links, *linked.data])
    assert mine.exists(), "a file outside the cache is not the cache's"
    assert cached_models(tmp_path) == []
    assert find_cached(HubName(REPO, "Q4_K_M"), tmp_path) is None


def test_a_file_with_another_digest_is_refused(tmp_path: Path) -> None:
    with (
        mirror(FILES, digests={"some-Q4_K_M.gguf": "0" * 64}) as url,
        pytest.raises(EndpointError, match="expected a file with SHA-256 0"),
    ):
        fetch(look_up(HubName(REPO), url), cache=tmp_path, endpoint=url)
    assert cached_models(tmp_path) == [], "the next one that asks does not find it"


def test_a_hub_that_refuses_or_is_not_there_is_an_error() -> None:
    with mirror(FILES) as url, pytest.raises(EndpointError, match="hf:org/other: expected a list of its files from the hub, got"):
        look_up(HubName("org/other"), url)
    with pytest.raises(EndpointError, match="expected a list of its files from the hub, got"):
        look_up(HubName(REPO), url)


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"pip install 'streamco\[models\]'"):
        DeviceEndpoint(f"hf:{REPO}")
