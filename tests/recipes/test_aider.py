"""aider in front of the proxy, with the page's settings."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.client.helpers import device
from tests.recipes.page import block, exports, typed
from tests.recipes.support import Finished, RecordedProxy, recorded_proxy, run, text
from tests.support.programs import command_of

pytestmark = [pytest.mark.long, pytest.mark.peer]

QUIET = ("--yes-always", "--no-analytics", "--no-check-update", "--no-show-release-notes", "--no-pretty", "--no-gitignore")
EDIT = """\
hello.py
```python
<<<<<<< SEARCH
print("hello")
=======
print("moon")
>>>>>>> REPLACE
```
"""


async def ask(proxy: RecordedProxy, folder: Path, *words: str) -> Finished:
    shown = proxy.filled(block("aider", "bash"))
    home = folder / "home"
    home.mkdir()
    options = [*typed(shown, "aider"), *QUIET, *words, "--message", "Say moon.", "hello.py"]
    return await run(*command_of("aider"), *options, home=home, folder=folder, LITELLM_LOCAL_MODEL_COST_MAP="True", **exports(shown))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a program."""
    (tmp_path / "hello.py").write_text('print("hello")\n')
    (tmp_path / ".aider.model.settings.yml").write_text(block("aider", ".aider.model.settings.yml"))
    return tmp_path


async def test_it_edits_a_file_with_one_request(folder: Path) -> None:
    command_of("aider")
    async with recorded_proxy(text(*EDIT.splitlines(keepends=True))) as proxy:
        done = await ask(proxy, folder, "--no-git")
    assert done.status == 0, done.out + done.err
    assert (folder / "hello.py").read_text() == 'print("moon")\n'
    (asked,) = proxy.asked
    assert (asked.path, asked.status) == ("/v1/chat/completions", 200)
    assert asked.body.keys() == {"messages", "model", "stream", "temperature"}
    assert (asked.body["model"], asked.body["stream"], asked.body["temperature"]) == ("streamco", True, 0)


async def test_the_device_alone_writes_the_message_of_the_commit(folder: Path) -> None:
    command_of("aider")
    git = ["git", "-C", str(folder)]
    subprocess.run([*git, "init", "-q"], check=True)
    for name, value in (("user.name", "A"), ("user.email", "a@example.com")):
        subprocess.run([*git, "config", name, value], check=True)
    subprocess.run([*git, "add", "hello.py"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "begin"], check=True)
    side = device([(0.0, "feat: say moon")])
    async with recorded_proxy(text(EDIT), device=side, policy="server-only", takes_tasks=True) as proxy:
        done = await ask(proxy, folder)
    assert done.status == 0, done.out + done.err
    subject = subprocess.run([*git, "log", "-1", "--format=%s"], check=True, capture_output=True, text=True).stdout
    assert subject == "feat: say moon\n"
    edit, commit = proxy.asked
    assert (edit.status, commit.status, commit.headers["x-streamco-task"]) == (200, 200, "commit message")
    assert commit.body.get("stream", False) is False
    assert len(proxy.remote.requests) == 1
